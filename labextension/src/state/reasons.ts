/** Why a session is as it is, in one sentence; reasons.py makes the same one in English. */

import { bytes, ITranslate, lasting, timeOfDay } from './format';
import { everyone, Notebook } from './notebook';
import { texts } from './reason_texts';
import { IReason, ISnapshot } from './snapshot';

/** The name of the session with this id. */
export type Namer = (session: string) => string;

/** Names as the panel shows them; a reason may name a notebook that has ended. */
export function namer(
  snapshot: ISnapshot,
  nameOf: (notebook: Notebook) => string,
  trans: ITranslate
): Namer {
  return id => {
    const found = everyone(snapshot).find(one => one.id === id);
    return found ? nameOf(found) : trans.__('a notebook that has ended');
  };
}

/**
 * The parts are joined by "; ", but for one that begins with a comma, or comes
 * after a colon or a space.
 */
export function sentence(
  why: IReason[],
  name: Namer,
  trans: ITranslate
): string {
  const known = texts(trans);
  return why.reduce((said, reason) => {
    // a newer broker has others
    const text = known[reason.code] ?? reason.code.replace(/_/g, ' ');
    const part = filled(text, reason, name, trans);
    if (!said || part.startsWith(',') || said.endsWith(' ')) {
      return said + part;
    }
    return said + (said.endsWith(':') ? ' ' : '; ') + part;
  }, '');
}

function filled(
  text: string,
  reason: IReason,
  name: Namer,
  trans: ITranslate
): string {
  return text.replace(/{(\w+)}/g, (_, key: keyof IReason) => {
    const value = reason[key] ?? 0;
    switch (key) {
      case 'other':
        return name(`${value}`);
      case 'bytes':
      case 'free':
      case 'whole':
        return bytes(+value);
      case 'seconds':
        return lasting(+value, trans);
      case 'until':
        return timeOfDay(+value);
      default:
        return `${value}`;
    }
  });
}
