/** The types of lit-html.js, which stands beside it as its release has it. Development only. */

export * from "lit-html";
