/**
 * Changes that a viewer wants, over REST; the caller decides how a request is
 * sent.
 */

import { Ask, IActions, IClassChoice, ISessionChange } from './view/view_model';

export const NAMESPACE = 'jupyter-gpushare/api/v1';

/** Sends a request to a path below NAMESPACE. */
export type Send = (path: string, init: RequestInit) => Promise<Response>;

export class RestActions implements IActions {
  constructor(send: Send) {
    this._send = send;
  }

  change(session: string, change: ISessionChange): Promise<void> {
    return this._carryOut('PATCH', ['sessions', session], change);
  }

  ask(session: string, ask: Ask): Promise<void> {
    return this._carryOut('POST', ['sessions', session, 'asks'], { ask });
  }

  choosePolicy(policy: string): Promise<void> {
    return this._carryOut('PUT', ['policy'], { policy });
  }

  holdClass(choice: IClassChoice): Promise<void> {
    return this._carryOut('PUT', ['classes'], choice);
  }

  private async _carryOut(
    method: string,
    path: string[],
    body: object
  ): Promise<void> {
    const where = path.map(encodeURIComponent).join('/');
    const init = { method, body: JSON.stringify(body) };
    const answer = await this._send(where, init);
    if (!answer.ok) {
      const failure = await answer.json().catch(() => ({}));
      throw new Error(failure.message || answer.statusText);
    }
  }

  private _send: Send;
}
