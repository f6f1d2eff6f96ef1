// Tells every word of the page in the language that is chosen. Knows nothing of what the words are for.
//
// The words stand in texts.en.js and its siblings, all of them fetched: whose page waits for words has dead buttons.
// {name} in a text is replaced by a value. A test keeps the keys and the names in braces equal in all languages.
// Elements say data-text="key" for their content, and data-label, data-title or data-placeholder for an attribute.

import * as de from "./texts.de.js";
import * as en from "./texts.en.js";
import * as ja from "./texts.ja.js";

export const LANGUAGES = { en: "English", de: "Deutsch", ja: "日本語" };

const REMEMBERED = "breezert.language";
const TEXTS = { en, de, ja }; // each with a section for the first part of a key
let chosen = first();

/** The language of the page: one of LANGUAGES. */
export const language = () => chosen;

/** Takes another language, and remembers it where the browser lets the page. */
export function choose(code) {
  chosen = code;
  try {
    localStorage.setItem(REMEMBERED, code);
  } catch {
    // storage is blocked: the choice holds until the page is left
  }
}

/** The text of a key. Throws on an unknown one. */
export function tell(key, values = {}) {
  const text = look(key);
  if (text === undefined) throw new RangeError(`there is no text ${key}`);
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** Whether there is such a text. */
export const known = (key) => typeof look(key) === "string";

function look(key) {
  const dot = key.indexOf(".");
  return TEXTS[chosen][key.slice(0, dot)]?.[key.slice(dot + 1)];
}

/** A number as the language writes it. */
export const number = (value, digits = 0) =>
  value.toLocaleString(chosen, { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: false });

/** Live regions speak at every change of their text, so it is only touched when it differs. */
export function put(element, words) {
  if (element.textContent !== words) element.textContent = words;
}

/** A new element of that class and with that text. */
export const make = (tag, className = "", textContent = "") =>
  Object.assign(document.createElement(tag), { className, textContent });

/** Writes the texts of all elements that name one. */
export function fill(root = document) {
  document.documentElement.lang = chosen;
  const attributes = { label: "aria-label", title: "title", placeholder: "placeholder" };
  for (const each of root.querySelectorAll("[data-text]")) each.textContent = tell(each.dataset.text);
  for (const [name, attribute] of Object.entries(attributes))
    for (const each of root.querySelectorAll(`[data-${name}]`)) each.setAttribute(attribute, tell(each.dataset[name]));
}

/** The one chosen before, or the first that the browser's user reads. */
function first() {
  const wanted = [...navigator.languages].map((tag) => tag.split("-")[0]);
  try {
    wanted.unshift(localStorage.getItem(REMEMBERED));
  } catch {
    // storage is blocked
  }
  return wanted.find((code) => Object.hasOwn(LANGUAGES, code)) ?? "en";
}
