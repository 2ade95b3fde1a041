/** The one place that declares Plotly's global; js/plot.js is the one module that uses it. Development only. */

import type * as PlotlyModule from "plotly.js-dist-min";

declare global {
  interface Window {
    Plotly?: typeof PlotlyModule;
  }
}
