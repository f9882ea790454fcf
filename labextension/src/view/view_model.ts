/** The data from which every part of the view is drawn. */

import { ITranslate } from '../state/format';
import { Notebook } from '../state/notebook';
import { ISnapshot, IViewer } from '../state/snapshot';

/**
 * The changes of a session that a viewer may request: fields of the server's SessionChange.
 */
export interface ISessionChange {
  weight?: number;
  paused?: boolean;
}

export type Ask = 'yield' | 'page_out' | 'cancel';

/** The changes of a class that a viewer may request: fields of the server's ClassChoice. */
export interface IClassChoice {
  group: string;
  on: boolean;
  device?: string;
  seconds?: number;
}

/** Carries out a viewer's requests; a refusal is an Error with one sentence. */
export interface IActions {
  change(session: string, change: ISessionChange): Promise<void>;
  ask(session: string, ask: Ask): Promise<void>;
  choosePolicy(name: string): Promise<void>;
  holdClass(choice: IClassChoice): Promise<void>;
}

/** The things that a viewer has opened and chosen, and the way to act. */
export interface IControls {
  trans: ITranslate;
  /** Whether the viewer has opened the part of that name. */
  isOpen(name: string): boolean;
  toggle(name: string): void;
  /**
   * The viewer's choice in the field of that name, if it is not applied yet.
   */
  choice(name: string): string | null;
  choose(name: string, value: string | null): void;
  /**
   * Carry out a request, and say in `sentence` that it was, or why it was not;
   * then the `field` of the request shows the actual value again.
   */
  act(action: Promise<void>, sentence: string, wish?: IWish): void;
}

export interface IViewModel extends IControls {
  /** The present state, by the page's clock. */
  snapshot: ISnapshot;
  /**
   * Now, in seconds of any clock that continues from one drawing to the next.
   */
  now: number;
  /**
   * The viewer; null where changes are impossible, as in a notebook's widget.
   */
  viewer: IViewer | null;
  actions: IActions | null;
  /**
   * Id of the session in whose notebook this view is, or of the one in front;
   * else empty.
   */
  own: string;
  /** The name of a notebook here, unique among all others. */
  nameOf(notebook: Notebook): string;
  /** Run the cell again whose wait was cancelled; null where there is none in an open notebook. */
  again(notebook: Notebook): (() => Promise<void>) | null;
  /**
   * Whether rows have just moved, so that a press may have been meant for
   * another one.
   */
  hasJustMoved(): boolean;
  /** Show why no request is sent. */
  refuse(sentence: string, field?: Element): void;
}

/**
 * The field of a request, and the notebook whose wait it ended, which can be
 * undone.
 */
export interface IWish {
  field?: Element;
  ended?: Notebook;
}
