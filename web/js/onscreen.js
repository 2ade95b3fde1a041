// Tells whether an element is on the screen, or nearly so. Other elements need not fetch anything.

const MARGIN = "200px";

export class Onscreen {
  /** False until the browser has checked. */
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
