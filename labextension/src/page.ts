/**
 * The panel as a page by itself, as a JupyterHub's service shows it to all
 * users of the hub.
 */

import { NAMESPACE, RestActions, Send } from './actions';
import { english } from './state/format';
import { DISCONNECTED, isSnapshot, State } from './state/notebook';
import { GpuShareModel } from './state/model';
import { GpuShareView } from './view/view';

/**
 * Show the panel in `node`; its data attributes have the base URL of the routes
 * and the XSRF token.
 */
export function show(node: HTMLElement): GpuShareModel {
  const { baseUrl, xsrf } = node.dataset;
  const base = new URL(`${baseUrl}${NAMESPACE}/`, location.href);
  const events = new URL('events', base);
  events.protocol = events.protocol.replace('http', 'ws');

  const send: Send = (path, init) =>
    fetch(new URL(path, base), { ...init, headers: { 'X-XSRFToken': xsrf! } });
  const model = new GpuShareModel(() => new WebSocket(events));
  const actions = new RestActions(send);
  const view = new GpuShareView(node, english, actions, false);
  model.changed.connect(() => {
    const { last, state, viewer } = model;
    view.show(last, { viewer }, performance.now());
    if (state?.type === 'Error' && state.code === DISCONNECTED) {
      void logInAgain(send);
    }
    reloadIfRefused(state);
  });
  setInterval(() => !document.hidden && view.tick(performance.now()), 1000);
  return model;
}

/**
 * A restarted service no longer knows this page: a reload logs in again.
 */
async function logInAgain(send: Send): Promise<void> {
  const answer = await send('viewer', {}).catch(() => null);
  if (answer?.status === 403) {
    location.reload();
  }
}

/**
 * The service refuses a token that has ended: a reload logs in again. If one
 * reload does not help, another would not either.
 */
function reloadIfRefused(state: State): void {
  if (isSnapshot(state)) {
    sessionStorage.removeItem(RELOADED);
  } else if (
    state?.code === 'not_permitted' &&
    sessionStorage.getItem(RELOADED) === null
  ) {
    sessionStorage.setItem(RELOADED, 'yes');
    location.reload();
  }
}

/** Kept in this tab from a reload until a snapshot comes. */
const RELOADED = 'jupyter-gpushare-reloaded';

const node = document.getElementById('jupyter-gpushare-page');
if (node !== null) {
  show(node);
}
