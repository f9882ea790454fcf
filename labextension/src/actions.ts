/**
 * Changes that a viewer wants, over REST; the caller decides how a request is
 * sent.
 */

import { Ask, IActions, IClassChoice, ISessionChange } from './view/view_model';

export const NAMESPACE = 'jupyter-gpushare/api/v1';

/** Sends a request to a path below NAMESPACE. */
export type Send = (path: string, init: RequestInit) => Promise<Response>;

/** The answer to a request; a refusal is an Error with one sentence. */
export async function request<Answer>(
  send: Send,
  path: string[],
  init: RequestInit = {},
  query = ''
): Promise<Answer> {
  const where = path.map(encodeURIComponent).join('/') + query;
  const answer = await send(where, init);
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    throw new Error(body.message || answer.statusText);
  }
  return body;
}

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

  private _carryOut(
    method: string,
    path: string[],
    body: object
  ): Promise<void> {
    const init = { method, body: JSON.stringify(body) };
    return request(this._send, path, init);
  }

  private _send: Send;
}
