// The user's microphone: asked for, chosen, muted, held by a key. Knows nothing of calls or of the page's elements.

const CONSTRAINTS = { echoCancellation: true, noiseSuppression: true };

const CODES = { NotAllowedError: "denied", SecurityError: "denied", NotReadableError: "taken", AbortError: "taken" };

export class Microphone {
  #stream = null;
  muted = false;
  pushes = false; // it is only heard while it is held
  held = false;

  /** Asks for it, by the browser's id of the device; "" takes the system's choice. Throws an error that says why there
   * is none: its `code` is denied, missing, taken or insecure. */
  async open(device = "") {
    if (!navigator.mediaDevices) throw refused("insecure");
    const audio = device ? { ...CONSTRAINTS, deviceId: { exact: device } } : CONSTRAINTS;
    try {
      this.#stream = await navigator.mediaDevices.getUserMedia({ audio });
    } catch ({ name }) {
      throw refused(CODES[name] ?? "missing");
    }
    this.set({});
    return this.#stream;
  }

  /** The call has ended its tracks. */
  close() {
    this.#stream = null;
    this.held = false;
  }

  get isOpen() {
    return this.#stream !== null;
  }

  /** Whether the server hears it. */
  get live() {
    return this.#stream !== null && !this.muted && (!this.pushes || this.held);
  }

  /** Changes muted, pushes or held. Silence is sent in place of what is muted: the server's timing goes on. */
  set(how) {
    Object.assign(this, how);
    for (const track of this.#stream?.getAudioTracks() ?? []) track.enabled = this.live;
  }
}

const refused = (code) => Object.assign(new Error(code), { code });

/** Ends what a stream captures. */
export const release = (stream) => stream?.getTracks().forEach((track) => track.stop());

const ALIASES = ["default", "communications"]; // of a device that is listed anyway

/** The audio devices of a kind, "audioinput" or "audiooutput"; their labels are empty before the user has agreed. */
export async function devices(kind) {
  const all = (await navigator.mediaDevices?.enumerateDevices().catch(() => [])) ?? [];
  return all.filter((each) => each.kind === kind && !ALIASES.includes(each.deviceId));
}
