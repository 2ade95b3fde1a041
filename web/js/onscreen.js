// Whether an element is on the screen, or within a little scrolling of it: what is not need not be fetched.

const MARGIN = "200px";

export class Onscreen {
  /** Whether it is there; false until the browser has looked. */
  here = false;
  #observer;

  /** @param {Element} element @param {() => void} onCome called each time it comes on the screen */
  constructor(element, onCome) {
    this.#observer = new IntersectionObserver(
      (entries) => {
        const before = this.here;
        this.here = entries.at(-1)?.isIntersecting ?? before;
        if (this.here && !before) onCome();
      },
      { rootMargin: MARGIN },
    );
    this.#observer.observe(element);
  }

  stop() {
    this.here = false;
    this.#observer.disconnect();
  }
}
