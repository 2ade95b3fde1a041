// A message pasted into the search finds its entry of the error index, whatever is around it and whatever its numbers are.
// The site's own search would ask for each of its words. As in `ampmon doctor`, runs of eight letters are compared.

{
  const LEAST = 0.3;
  const SURE = 0.6;
  const WORDS = 5; // fewer are words to search for
  const LENGTH = 8;
  const LAST = 5000; // letters of a long log
  const NOT_TEXT = /\x1b\[[0-9;]*m|\b\w*(?:Error|Exception|Warning):|[^a-z_]/gi;

  const letters = (text) => text.replace(NOT_TEXT, "").toLowerCase();
  const runs = (text) => new Set(Array.from(text.slice(LENGTH - 1), (_, start) => text.slice(start, start + LENGTH)));

  let entries = [];
  let having = new Map();

  const learn = (items) => {
    entries = items
      .filter(({ location, level }) => location.includes("/errors.html#") && level === 3)
      .map(({ path, title, text }) => {
        const head = new DOMParser().parseFromString(text.split("Cause.")[0], "text/html");
        const messages = [...head.querySelectorAll("pre")].map((each) => letters(each.textContent));
        return { query: [...path, title].join(" "), messages: messages.map((message) => ({ message, its: runs(message) })) };
      });
    having = new Map();
    for (const { messages } of entries)
      for (const run of new Set(messages.flatMap(({ its }) => [...its]))) having.set(run, (having.get(run) ?? 0) + 1);
  };

  // The fewer entries have a run, the more it weighs.
  const weight = (its) =>
    [...its].reduce((sum, run) => sum + Math.log1p(entries.length / (having.get(run) ?? 0.5)), 0);
  const share = (part, whole) => weight([...part].filter((run) => whole.has(run))) / (weight(part) || 1);

  // What finds the entry that a text is about. Of several sure ones the last in the text: an error is below its warnings.
  const find = (text) => {
    if (text.trim().split(/\s+/).length < WORDS) return;
    const whole = letters(text).slice(-LAST);
    const its = runs(whole);
    return entries
      .map(({ query, messages }) => {
        const score = Math.max(...messages.flatMap((each) => [share(each.its, its), share(its, each.its)]));
        const place = Math.max(...messages.map(({ message }) => whole.lastIndexOf(message.slice(-LENGTH))));
        return { query, score, place: score < SURE ? -1 : place };
      })
      .filter(({ score }) => score >= LEAST)
      .sort((a, b) => b.place - a.place || b.score - a.score)[0]?.query;
  };

  // What the site tells its search: 0 is the index, 2 a query.
  const { postMessage: post } = Worker.prototype;
  Worker.prototype.postMessage = function (message, ...rest) {
    const { type, data } = message;
    if (type === 0) learn(data.items);
    const query = type === 2 && find(data.input);
    return post.call(this, query ? { type, data: { ...data, input: query } } : message, ...rest);
  };
}
