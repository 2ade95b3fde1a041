/** The types of lit-html.js, which stands beside it as its release has it. Development only. */

import type { TemplateResult } from "lit-html";

/** What a listener in a template is told, whatever it listens to: of an event it takes what that kind has. */
export type Told = KeyboardEvent & FocusEvent & { target: HTMLInputElement; currentTarget: HTMLElement };
type Part = string | number | boolean | null | undefined | symbol | Node | TemplateResult | readonly Part[] | ((event: Told) => void);

export * from "lit-html";
export declare function html(strings: TemplateStringsArray, ...parts: Part[]): TemplateResult<1>;
