// Where the time to the first sound went, a bar for each reply. Knows nothing of calls.

import { make, number, tell } from "./texts.js";

const SHOWN = 5; // replies
const PARTS = ["network", "queued", "text", "prefill", "decode", "depth", "codec", "waited", "delivered", "playout", "jitter"];
const IDLE = ["queued", "decode", "waited", "delivered"]; // that may not be there at all
const LEAST_MS = 0.5; // shorter ones of them are not named

export class Waterfall {
  #list;
  #bars = []; // newest first: {id, parts: {name: ms}}

  constructor(list) {
    this.#list = list;
  }

  /** A speech.waterfall. */
  take(message) {
    const parts = Object.fromEntries(PARTS.map((name) => [name, message[`${name}_ms`]]));
    this.#bars.unshift({ id: message.id, parts });
    this.#bars = this.#bars.slice(0, SHOWN);
    this.render();
  }

  /** The listener's own around it, in ms: the way there and back, and his jitter buffer; undefined: not known yet. */
  surround({ trip, delay }) {
    const open = this.#bars.filter(({ parts }) => parts.network === undefined || parts.jitter === undefined);
    for (const { parts } of open) Object.assign(parts, { network: parts.network ?? trip, jitter: parts.jitter ?? delay });
    if (open.length) this.render();
  }

  clear() {
    this.#bars = [];
    this.render();
  }

  render() {
    const longest = Math.max(...this.#bars.map(total));
    this.#list.replaceChildren(...this.#bars.map((bar) => row(bar, longest)));
  }
}

const total = ({ parts }) => Object.values(parts).reduce((sum, ms = 0) => sum + ms, 0);
const part = ([name, ms]) => tell("waterfall.part", { name: tell(`waterfall.${name}`), ms: number(ms, ms < 10 ? 1 : 0) });

function row(bar, longest) {
  const parts = Object.entries(bar.parts).filter(([name, ms]) => ms >= (IDLE.includes(name) ? LEAST_MS : 0));
  const [item, track, words] = [make("li"), make("div", "track"), make("ul")];
  track.style.width = `${(100 * total(bar)) / longest}%`;
  for (const [name, ms] of parts) {
    const piece = track.appendChild(make("span"));
    const word = words.appendChild(make("li", "", part([name, ms])));
    piece.dataset.part = word.dataset.part = name;
    piece.style.flexGrow = ms;
    piece.title = word.textContent;
  }
  item.append(track, make("strong", "", `${number(total(bar))} ms`), words);
  return item;
}
