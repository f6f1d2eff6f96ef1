// Small plots: a line of the last minute, and a histogram. Knows nothing of what they show.

import { make, number, tell } from "./texts.js";

const SECONDS = 60;
const WIDTH = 120;
const HEIGHT = 32;

/** A line of one value a second. `element`, whose id is line-ID, is filled; `name` is the key of its name. */
export class Line {
  #values = [];
  #element;
  #line;
  #name;
  #unit;
  #least;

  /** `least`: the smallest value that fills the height, so that noise does not look like news. */
  constructor(element, name, unit, least) {
    [this.#element, this.#name, this.#unit, this.#least] = [element, name, unit, least];
    const value = `<b class="value" id="${element.id.slice(5)}"></b>`;
    const picture = `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" aria-hidden="true"><polyline/></svg>`;
    element.innerHTML = `<span data-text="${name}"></span>${value}<div class="plot" role="img">${picture}</div>`;
    this.#line = element.querySelector("polyline");
    this.render();
  }

  /** undefined: nothing was measured in this second. */
  add(value) {
    this.#values = [...this.#values, value].slice(-SECONDS);
    this.render();
  }

  clear() {
    this.#values = [];
    this.render();
  }

  render() {
    const known = this.#values.filter((value) => value !== undefined);
    const [now, most] = [this.#values.at(-1), Math.max(...known)];
    this.#element.querySelector(".value").textContent = this.#spell(now);
    const words = { name: tell(this.#name), now: this.#spell(now), most: this.#spell(known.length ? most : undefined) };
    this.#element.querySelector(".plot").setAttribute("aria-label", tell("stats.plot", words));
    const top = Math.max(this.#least, most);
    const points = this.#values.map((value, index) => [
      WIDTH - ((this.#values.length - 1 - index) * WIDTH) / (SECONDS - 1),
      HEIGHT - 1.5 - (HEIGHT - 3) * ((value ?? 0) / top),
    ]);
    this.#line.setAttribute("points", points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" "));
  }

  #spell(value) {
    if (value === undefined) return "–";
    return number(value, value < 10 && this.#unit ? 1 : 0) + (this.#unit ? ` ${this.#unit}` : "");
  }
}

/** How often values fell between edges. `element` becomes a list of bars. */
export class Histogram {
  #element;
  #step;
  #bins;
  values = [];

  /** Bins of `step`, the last of them for everything above. */
  constructor(element, step, bins) {
    [this.#element, this.#step, this.#bins] = [element, step, bins];
    this.render();
  }

  add(value) {
    this.values.push(value);
    this.render();
  }

  get median() {
    const sorted = this.values.toSorted((one, other) => one - other);
    const middle = Math.floor(sorted.length / 2);
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }

  render() {
    const counts = Array.from({ length: this.#bins }, () => 0);
    for (const value of this.values) counts[Math.min(this.#bins - 1, Math.floor(value / this.#step))]++;
    const most = Math.max(1, ...counts);
    this.#element.replaceChildren(...counts.map((count, index) => this.#bar(index, count, most)));
  }

  #bar(index, count, most) {
    const [from, to] = [index * this.#step, index + 1 < this.#bins ? (index + 1) * this.#step : "∞"];
    const words = tell("demo.bin", { count: number(count), from, to });
    const [item, bar] = [make("li"), make("span", "bar")];
    bar.style.height = `${(100 * count) / most}%`;
    item.append(bar, make("span", "hidden-words", words));
    if (index % 5 === 0) item.dataset.edge = from;
    return item;
  }
}
