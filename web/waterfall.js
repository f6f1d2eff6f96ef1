// Where the time to the first sound went, a bar for each reply. Knows nothing of calls.

import { number, tell } from "./texts.js";

const SHOWN = 5; // replies
const PARTS = ["network", "queued", "text", "prefill", "decode", "depth", "codec", "waited", "delivered", "playout", "jitter"];
const LEAST_MS = 0.5; // shorter parts are not named

export class Waterfall {
  #list;
  #bars = []; // newest first: {id, parts: {name: ms}}

  constructor(list) {
    this.#list = list;
  }

  /** A speech.waterfall, with the listener's own round trip and jitter buffer around it, in ms. */
  take(message, { trip = 0, jitter = 0 }) {
    const parts = Object.fromEntries(PARTS.map((name) => [name, message[`${name}_ms`] ?? 0]));
    this.#bars.unshift({ id: message.id, parts: { ...parts, network: trip / 2, jitter } });
    this.#bars = this.#bars.slice(0, SHOWN);
    this.render();
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

const total = ({ parts }) => Object.values(parts).reduce((sum, ms) => sum + ms, 0);
const part = ([name, ms]) => tell("waterfall.part", { name: tell(`waterfall.${name}`), ms: number(ms, ms < 10 ? 1 : 0) });

function row(bar, longest) {
  const parts = Object.entries(bar.parts).filter(([, ms]) => ms >= LEAST_MS);
  const item = document.createElement("li");
  const track = item.appendChild(document.createElement("div"));
  track.className = "track";
  track.style.width = `${(100 * total(bar)) / longest}%`;
  for (const [name, ms] of parts) {
    const piece = track.appendChild(document.createElement("span"));
    piece.dataset.part = name;
    piece.style.flexGrow = ms;
    piece.title = part([name, ms]);
  }
  const sum = item.appendChild(document.createElement("strong"));
  sum.textContent = `${number(total(bar))} ms`;
  const words = item.appendChild(document.createElement("ul"));
  for (const [name, ms] of parts) {
    const word = words.appendChild(document.createElement("li"));
    word.dataset.part = name;
    word.textContent = part([name, ms]);
  }
  return item;
}
