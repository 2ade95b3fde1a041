// Whether an element is on the screen, or within a little scrolling of it: what is not need not be fetched.

const MARGIN = "200px";

/** @type {Map<Element, Onscreen>} */
const watched = new Map();
/** @type {IntersectionObserver | undefined} */
let observer;

export class Onscreen {
  /** Whether it is there; false until the browser has looked. */
  here = false;

  /**
   * @param {Element} element
   * @param {() => void} onCome called each time it comes on the screen
   */
  constructor(element, onCome) {
    this.element = element;
    this.onCome = onCome;
    watched.set(element, this);
    observer ??= new IntersectionObserver(seen, { rootMargin: MARGIN });
    observer.observe(element);
  }

  stop() {
    this.here = false;
    watched.delete(this.element);
    observer?.unobserve(this.element);
  }
}

/** @param {IntersectionObserverEntry[]} entries in the order of time: an element may be in it twice */
function seen(entries) {
  const before = new Map(entries.map(({ target }) => [target, watched.get(target)?.here]));
  for (const { target, isIntersecting } of entries) {
    const known = watched.get(target);
    if (known) known.here = isIntersecting;
  }
  for (const [target, was] of before) {
    const known = watched.get(target);
    if (known?.here && !was) known.onCome();
  }
}
