import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import widget from '../src/anywidget';
import { running, showPage, snapshot } from './states';

/** A widget's model, as its kernel and all pages have it. */
class Model {
  state = JSON.stringify(snapshot(running));
  own = 'a';
  watched = true;
  private _listeners = new Map<string, Set<() => void>>();

  get(name: 'state' | 'own' | 'watched'): never {
    return this[name] as never;
  }
  set(name: string, value: unknown): void {
    if (this.get(name as 'watched') !== value) {
      Object.assign(this, { [name]: value });
      this.of(`change:${name}`).forEach(listener => listener());
    }
  }
  save_changes(): void {}
  on(event: string, listener: () => void): void {
    this.of(event).add(listener);
  }
  off(event: string, listener: () => void): void {
    this.of(event).delete(listener);
  }
  of(event: string): Set<() => void> {
    const known = this._listeners.get(event) ?? new Set();
    this._listeners.set(event, known);
    return known;
  }
}

let model: Model;
const render = (el = document.createElement('div')) =>
  widget.render({ model, el });

beforeEach(() => {
  vi.useFakeTimers();
  model = new Model();
  showPage(true);
});

afterEach(() => {
  vi.useRealTimers();
});

describe('the widget', () => {
  it('watches while its page is seen', () => {
    const end = render();
    showPage(false);
    expect(model.watched).toBe(false);
    showPage(true);
    expect(model.watched).toBe(true);
    end();
    expect(model.watched).toBe(false);
  });

  it('watches again after its page was closed while it was hidden', () => {
    model.watched = false;
    const end = render();
    expect(model.watched).toBe(true);
    end();
  });

  it('continues while another page, or another view, is visible', () => {
    const ends = [render(), render()];
    ends[0]();
    expect(model.watched).toBe(true);
    model.set('watched', false); // by a page that is hidden
    expect(model.watched).toBe(true);
    ends[1]();
    expect(model.watched).toBe(false);
  });

  it('judges by the clock of its page, without messages of its kernel', () => {
    const el = document.createElement('div');
    const end = render(el);
    expect(el.textContent).toContain('has been running for 12 s');
    vi.advanceTimersByTime(30_000);
    expect(el.textContent).toContain('has been running for 42 s');
    end();
  });

  it('leaves nothing behind', () => {
    render()();
    showPage(true);
    expect(vi.getTimerCount()).toBe(0);
    expect(model.of('change:state').size).toBe(0);
    expect(model.of('change:watched').size).toBe(0);
    expect(model.watched).toBe(false);
  });
});
