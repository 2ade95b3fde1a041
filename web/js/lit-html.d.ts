/** The types of lit-html.js, which stands beside it as its release has it. Development only. */

import type { TemplateResult } from "lit-html";

/** The event that a listener in a template gets. Which properties it has depends on its kind. */
export type UserEvent = KeyboardEvent & FocusEvent & { target: HTMLInputElement; currentTarget: HTMLElement };
type Part = string | number | boolean | null | undefined | symbol | Node | TemplateResult | readonly Part[] | ((event: UserEvent) => void);

export * from "lit-html";
export declare function html(strings: TemplateStringsArray, ...parts: Part[]): TemplateResult<1>;
