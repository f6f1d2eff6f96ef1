// The user's microphone: asked for, chosen, muted, held by a key. Knows nothing of calls or of the page's elements.

const CONSTRAINTS = { echoCancellation: true, noiseSuppression: true };

/** Why there is no microphone: `code` is denied, missing, taken or insecure. */
export class MicrophoneError extends Error {
  constructor(code) {
    super(code);
    this.code = code;
  }
}

const CODES = { NotAllowedError: "denied", SecurityError: "denied", NotReadableError: "taken", AbortError: "taken" };

export class Microphone {
  #stream = null;
  #muted = false;
  #pushes = false;
  #held = false;

  /** Asks for it, by the browser's id of the device; "" takes the system's choice. Throws MicrophoneError. */
  async open(device = "") {
    if (!navigator.mediaDevices) throw new MicrophoneError("insecure");
    const audio = device ? { ...CONSTRAINTS, deviceId: { exact: device } } : CONSTRAINTS;
    try {
      this.#stream = await navigator.mediaDevices.getUserMedia({ audio });
    } catch ({ name }) {
      throw new MicrophoneError(CODES[name] ?? "missing");
    }
    this.#apply();
    return this.#stream;
  }

  /** The call has ended its tracks. */
  close() {
    this.#stream = null;
    this.#held = false;
  }

  get isOpen() {
    return this.#stream !== null;
  }

  get muted() {
    return this.#muted;
  }

  set muted(on) {
    this.#muted = on;
    this.#apply();
  }

  /** Whether it is only heard while it is held. */
  get pushes() {
    return this.#pushes;
  }

  set pushes(on) {
    this.#pushes = on;
    this.#held = false;
    this.#apply();
  }

  get held() {
    return this.#held;
  }

  set held(on) {
    this.#held = on;
    this.#apply();
  }

  /** Whether the server hears it. */
  get live() {
    return this.#stream !== null && !this.#muted && (!this.#pushes || this.#held);
  }

  /** Silence is sent in place of what is muted, so that the server's timing goes on. */
  #apply() {
    for (const track of this.#stream?.getAudioTracks() ?? []) track.enabled = this.live;
  }
}

/** The audio devices of a kind, "audioinput" or "audiooutput"; their labels are empty before the user has agreed. */
export async function devices(kind) {
  const all = (await navigator.mediaDevices?.enumerateDevices().catch(() => [])) ?? [];
  return all.filter((each) => each.kind === kind && each.deviceId !== "default" && each.deviceId !== "communications");
}

/** Whether there seems to be a microphone, as far as a page may know before it asks. */
export async function seemsThere() {
  const all = (await navigator.mediaDevices?.enumerateDevices().catch(() => [])) ?? [];
  return all.some(({ kind }) => kind === "audioinput");
}
