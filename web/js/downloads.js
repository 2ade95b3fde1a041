// Downloads files, and copies text to the clipboard.

import { h } from "./dom.js";
import { toast } from "./toast.js";

/** @param {string} name @param {string} address of its content: a data: or blob: URL */
export function download(name, address) {
  h("a", { href: address, download: name }).click();
}

/** @param {string} name @param {string} text @param {string} type */
export function downloadText(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  download(name, address);
  // The browser reads the blob only after this call.
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Copy text, and show a toast. @type {(text: string, name?: string) => Promise<void>} */
export async function copy(text, what = text) {
  const done = await navigator.clipboard?.writeText(text).then(() => true, () => false) ?? false;
  toast(done ? `Copied ${what}` : `The browser blocked copying. Copy this text: ${text}`);
}

export const copyLink = () => copy(location.href, "a link to this view");
