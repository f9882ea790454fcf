/** Why a session is as it is, in one sentence; reasons.py makes the same one in English. */

import { bytes, ITranslate, Notebook, resting } from './format';
import { GONE, TEXTS } from './reason_texts';
import { IReason, ISnapshot } from './snapshot';

/** The name of the session with this id. */
export type Namer = (session: string) => string;

/** Names as the panel shows them; a reason may name a notebook that has ended. */
export function namer(
  { devices }: ISnapshot,
  nameOf: (notebook: Notebook) => string,
  trans: ITranslate
): Namer {
  return id => {
    const all = devices.flatMap((device): Notebook[] => [
      ...device.sessions,
      ...resting(device)
    ]);
    const found = all.find(one => one.id === id);
    return found ? nameOf(found) : GONE(trans);
  };
}

/** The parts are joined by "; ", but for one that begins with a comma or comes after a colon. */
export function sentence(
  why: IReason[],
  name: Namer,
  trans: ITranslate
): string {
  return why.reduce((said, reason) => {
    const text = part(reason, name, trans);
    if (said === '' || text.startsWith(',')) {
      return said + text;
    }
    return said.endsWith(':') ? `${said} ${text}` : `${said}; ${text}`;
  }, '');
}

function part(reason: IReason, name: Namer, trans: ITranslate): string {
  const fields: Record<string, string> = {
    other: reason.other ? name(reason.other) : '',
    bytes: bytes(reason.bytes ?? 0),
    free: bytes(reason.free ?? 0),
    count: String(reason.count ?? 0),
    percent: String(reason.percent ?? 0),
    device: reason.device ?? '',
    text: reason.text ?? ''
  };
  const text = TEXTS.get(reason.code);
  if (text === undefined) {
    return reason.code.replace(/_/g, ' '); // a newer broker's
  }
  return text(trans).replace(
    /\{(\w+)\}/g,
    (field, key) => fields[key] ?? field
  );
}
