// What was said and how much of it was heard, as a list, the newest first. Knows nothing of calls.

import { make, number, put, tell } from "./texts.js";

const SHOWN = 30; // utterances
const CHARS_A_SECOND = 14; // of English speech, until an utterance was heard to its end
const OVER = ["end", "length", "cancelled", "failed"];

export class Transcript {
  #list;
  #rows = new Map(); // id -> element
  #pace = CHARS_A_SECOND;
  utterances = []; // newest first: {id, who, text, heard, state, detail, underruns, ...}

  constructor(list) {
    this.#list = list;
  }

  get pending() {
    return this.utterances.filter(({ state }) => state === "waiting" || state === "speaking");
  }

  get underruns() {
    return this.utterances.reduce((sum, each) => sum + each.underruns, 0);
  }

  find(id) {
    return this.utterances.find((each) => each.id === id);
  }

  /** A new one, or more of its text; `detail` gives the words of its state. */
  add(id, text, { who = "agent", state = "waiting", detail = () => tell("said.waiting"), ...more } = {}) {
    const known = this.pending.find((each) => each.id === id);
    if (known) return (known.text += text), known;
    const utterance = { id, who, text, heard: who === "user" ? text : "", state, detail, underruns: 0, ...more };
    this.utterances.unshift(utterance);
    return utterance;
  }

  /** How far a playing one was heard. Of its text that is an estimate; the server tells the truth at its end. */
  hear(utterance, heardMs) {
    const chars = Math.round((heardMs / 1000) * this.#pace);
    const end = utterance.text.indexOf(" ", chars);
    utterance.heard = end < 0 ? utterance.text : utterance.text.slice(0, end);
    utterance.known = false;
  }

  /** The last word on one. */
  stop(utterance, { reason, heard_ms: heardMs, heard = "" }) {
    if (reason === "end" && heardMs > 500) this.#pace = utterance.text.length / (heardMs / 1000);
    const seconds = () => tell(`said.${OVER.includes(reason) ? reason : "end"}`, { seconds: spell(heardMs) });
    const detail = reason === "failed" && !heardMs ? () => tell("said.not_said") : seconds;
    const state = reason === "failed" ? "failed" : "over";
    Object.assign(utterance, { state, detail, heard: utterance.unasked ? utterance.text : heard, known: true });
  }

  clear() {
    this.utterances = [];
  }

  render() {
    const shown = this.utterances.slice(0, SHOWN);
    const ids = new Set(shown.map(({ id }) => id));
    for (const [id, row] of this.#rows) if (!ids.has(id)) row.remove(), this.#rows.delete(id);
    for (const utterance of shown.toReversed()) this.#write(utterance);
  }

  #write({ id, who, text, heard, state, detail, known }) {
    let row = this.#rows.get(id);
    if (!row) {
      row = blank(id, who);
      this.#rows.set(id, row);
      this.#list.prepend(row);
    }
    const struck = state === "over" || state === "failed" || known;
    row.dataset.state = state;
    put(row.querySelector(".who"), tell(who === "user" ? "talk.you" : "talk.agent"));
    put(row.querySelector(".heard"), heard);
    put(row.querySelector(".unheard"), text.slice(heard.length));
    row.querySelector(".unheard").toggleAttribute("data-struck", Boolean(struck));
    put(row.querySelector(".state"), detail());
  }
}

function blank(id, who) {
  const [row, text] = [make("li"), make("p", "text")];
  Object.assign(row.dataset, { id, who });
  text.append(make("span", "heard"), make("del", "unheard"));
  row.append(make("span", "who"), make("span", "state"), text);
  return row;
}

/** Milliseconds as seconds. */
export const spell = (ms) => `${number(ms / 1000, 1)} s`;
