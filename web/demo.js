// "Try to break it": the controls of a server that was started for a demonstration. Knows nothing of calls: what a
// control does goes out through `send` and the other callables that it is given.

import { Histogram } from "./plots.js";
import { known, make, number, put, tell } from "./texts.js";

const SETTLED_MS = 150; // a slider that is being moved sends no more often
const BIN_MS = 20;
const BINS = 16;
const AUTOMATIC = 10;
const BEFORE_PRESS_MS = [600, 2_400];
const RETRY_MS = 2_000;
const TROUBLES = [[0, 0], [0.02, 0], [0.1, 0], [0, 40], [0, 120]].map(([loss, jitter_ms]) => ({ loss, jitter_ms }));
const TALK = // English, as the embedded voice is
  "You may interrupt me whenever you like, and I will stop at once. Until you do, I shall go on talking about nothing in " +
  "particular, about the weather, about trains that run on time, and about all the sentences that were never finished.";

const element = (id) => document.getElementById(id);

export class Demo {
  #do;
  #histogram = new Histogram(element("stops"), BIN_MS, BINS);
  #state = null;
  #timer;
  #slid;
  #left = 0; // presses to come of the automatic ones
  #measuring = false;
  #asked = false; // it was told to talk, and does not yet

  /** `calls`: send(fields of a demo message), speak(text), stop(), measure(then), speaking(), pending(), download(). */
  constructor(calls) {
    this.#do = calls;
    element("load").oninput = () => this.#slide();
    element("talk").onclick = () => calls.speak(TALK);
    element("interrupt").onclick = () => this.#interrupt();
    element("auto").onclick = () => this.#automatic(this.#left ? 0 : AUTOMATIC);
    element("download").onclick = calls.download;
    this.render();
  }

  /** The server's demo.state, or null where there is none: the controls are then hidden. */
  take(state) {
    this.#state = state;
    element("demo").hidden = !state;
    if (!state) this.#automatic(0);
    this.render();
  }

  /** The agent began or ceased to speak. */
  hear(speaking) {
    element("interrupt").disabled = !speaking || this.#measuring;
    element("talk").disabled = speaking;
    if (speaking) this.#asked = false;
    if (!this.#left || this.#timer || this.#measuring) return;
    if (this.#asked && !this.#do.pending()) this.#retry();
    else this.#next(speaking);
  }

  render() {
    if (this.#state) {
      const { load, max_load: most } = this.#state;
      if (document.activeElement !== element("load")) Object.assign(element("load"), { max: most, value: load });
      this.#tellLoad(load);
      this.#choices();
    }
    element("auto").textContent = tell(this.#left ? "demo.no_auto" : "demo.auto");
    this.#histogram.render();
    const { values, median } = this.#histogram;
    const figures = { count: number(values.length), median: number(median ?? 0), slowest: number(Math.max(0, ...values)) };
    put(element("presses"), values.length ? tell("demo.presses", figures) : tell("demo.no_presses"));
  }

  // ---- what the server is told ----

  #slide() {
    const load = Number(element("load").value);
    this.#tellLoad(load);
    clearTimeout(this.#slid);
    this.#slid = setTimeout(() => this.#do.send({ load }), SETTLED_MS);
  }

  #tellLoad(count) {
    const words = tell("demo.load_value", { count: number(count), most: number(this.#state.max_load) });
    element("load-value").textContent = words;
    element("load").setAttribute("aria-valuetext", words);
  }

  #choices() {
    const { policy, policies, loss, jitter_ms } = this.#state;
    const policyOf = (name) => ({
      words: known(`demo.${name}`) ? tell(`demo.${name}`) : name,
      help: known(`demo.${name}_help`) ? tell(`demo.${name}_help`) : "",
      chosen: name === policy,
      choose: () => this.#do.send({ policy: name }),
    });
    choose(element("policies"), policies.map(policyOf));
    const troubleOf = (trouble) => ({
      words: troubleWords(trouble),
      chosen: trouble.loss === loss && trouble.jitter_ms === jitter_ms,
      choose: () => this.#do.send(trouble),
    });
    choose(element("troubles"), TROUBLES.map(troubleOf));
  }

  // ---- barge-in ----

  #interrupt() {
    this.#measuring = true;
    this.#do.stop(); // first: what is measured may be over at once, and the next be asked for
    this.#do.measure((ms) => {
      this.#measuring = false;
      if (ms !== null) this.#histogram.add(ms);
      if (ms !== null && this.#left) this.#left--;
      this.render();
      if (ms === null) put(element("presses"), tell("demo.in_pause"));
      this.hear(this.#do.speaking());
    });
  }

  #automatic(count) {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#left = count;
    this.#asked = false;
    this.render();
    if (count) this.#next(this.#do.speaking());
  }

  #next(speaking) {
    if (!speaking) {
      const toldBefore = this.#asked;
      this.#asked = true;
      if (!toldBefore) this.#do.speak(TALK);
      return;
    }
    const [least, most] = BEFORE_PRESS_MS;
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.#interrupt();
    }, least + Math.random() * (most - least));
  }

  /** All voices were busy. */
  #retry() {
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.#asked = false;
      this.#next(this.#do.speaking());
    }, RETRY_MS);
  }
}

function troubleWords({ loss, jitter_ms: ms }) {
  if (loss) return tell("demo.loss", { percent: number(100 * loss) });
  return ms ? tell("demo.jitter", { ms: number(ms) }) : tell("demo.none");
}

/** A group of buttons of which one is pressed. They stay the same elements, so that the focus stays as well. */
function choose(group, choices) {
  while (group.children.length > choices.length) group.lastChild.remove();
  while (group.children.length < choices.length) group.append(make("button"));
  choices.forEach(({ words, help = "", chosen, choose }, index) => {
    const button = group.children[index];
    button.setAttribute("aria-pressed", String(chosen));
    button.onclick = choose;
    button.replaceChildren(words, ...(help ? [" ", make("small", "", help)] : []));
  });
}
