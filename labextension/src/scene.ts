/** What every part of the view is drawn from. */

import { ITranslate } from './format';
import { ISessionView, ISnapshot, IViewer } from './snapshot';

/** What a viewer may want of a session: fields of the server's SessionChange. */
export interface ISessionChange {
  weight?: number;
  paused?: boolean;
}

export type Ask = 'yield' | 'page_out' | 'cancel';

/** Carries out what a viewer wants; a refusal is an Error with one sentence. */
/** What a viewer may want of a class: fields of the server's ClassChoice. */
export interface IClassChoice {
  group: string;
  on: boolean;
  device?: string;
  seconds?: number;
}

export interface IActions {
  change(session: string, change: ISessionChange): Promise<void>;
  ask(session: string, ask: Ask): Promise<void>;
  choosePolicy(name: string): Promise<void>;
  holdClass(choice: IClassChoice): Promise<void>;
}

export interface IScene {
  trans: ITranslate;
  snapshot: ISnapshot;
  /** Seconds since the snapshot came. */
  elapsed: number;
  /** Now, in seconds of any clock that goes on from one drawing to the next. */
  now: number;
  /** Who looks; null where nobody may act, as in a notebook's widget. */
  viewer: IViewer | null;
  actions: IActions | null;
  /** Id of the session in whose notebook this stands, or of the one in front; else empty. */
  own: string;
  /** The same in the order of the last drawing, while the viewer points at something in it. */
  settled(sessions: ISessionView[]): ISessionView[];
  /** What the viewer has opened, by name. */
  isOpen(name: string): boolean;
  toggle(name: string): void;
  /**
   * Carry out what was asked for, and say in `sentence` that it was, or why it was not; then the
   * `field` in which it was wished shows again what is.
   */
  act(deed: Promise<void>, sentence: string, field?: Element): void;
}
