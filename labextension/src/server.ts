/** What the server is asked: its socket, and the changes that a viewer wants. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { Ask, IActions, IClassChoice, ISessionChange } from './scene';

const NAMESPACE = 'jupyter-gpushare/api/v1';

export function openSocket(settings: ServerConnection.ISettings): WebSocket {
  const url = URLExt.join(settings.wsUrl, NAMESPACE, 'events');
  const query = settings.appendToken
    ? URLExt.objectToQueryString({ token: settings.token })
    : '';
  return new settings.WebSocket(url + query);
}

/** Changes by the server's REST interface. */
export class ServerActions implements IActions {
  constructor(settings: ServerConnection.ISettings) {
    this._settings = settings;
  }

  change(session: string, change: ISessionChange): Promise<void> {
    return this._send('PATCH', ['sessions', session], change);
  }

  ask(session: string, ask: Ask): Promise<void> {
    return this._send('POST', ['sessions', session, 'asks'], { ask });
  }

  choosePolicy(policy: string): Promise<void> {
    return this._send('PUT', ['policy'], { policy });
  }

  holdClass(choice: IClassChoice): Promise<void> {
    return this._send('PUT', ['classes'], choice);
  }

  private async _send(
    method: string,
    path: string[],
    body: object
  ): Promise<void> {
    const parts = path.map(encodeURIComponent);
    const url = URLExt.join(this._settings.baseUrl, NAMESPACE, ...parts);
    const init = { method, body: JSON.stringify(body) };
    const answer = await ServerConnection.makeRequest(
      url,
      init,
      this._settings
    );
    if (!answer.ok) {
      const failure = await answer.json().catch(() => ({}));
      throw new Error(failure.message || answer.statusText);
    }
  }

  private _settings: ServerConnection.ISettings;
}
