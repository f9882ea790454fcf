/** The panel's view as a widget in a notebook; its kernel feeds it, so it needs no server. */

import { GpuShareView } from './view/view';

interface IWidgetModel {
  get(name: 'state' | 'own'): string;
  get(name: 'watched'): boolean;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(event: string, listener: () => void): void;
  off(event: string, listener: () => void): void;
}

function render({
  model,
  el
}: {
  model: IWidgetModel;
  el: HTMLElement;
}): () => void {
  const view = new GpuShareView(el);
  const show = () =>
    view.update({
      state: JSON.parse(model.get('state')),
      receivedAt: performance.now(),
      own: model.get('own')
    });
  const watch = (watched: boolean) => {
    model.set('watched', watched);
    model.save_changes();
  };
  // a hidden page needs nothing from the kernel, and so nothing from the broker
  const stand = () => watch(!document.hidden);
  // another page that is hidden, or a deleted output, may have turned this off while this page is
  // visible
  const insist = () => {
    if (!model.get('watched') && !document.hidden) {
      watch(true);
    }
  };
  const timer = setInterval(() => view.tick(performance.now()), 1000);
  model.on('change:state', show);
  model.on('change:watched', insist);
  document.addEventListener('visibilitychange', stand);
  show();
  insist(); // a page that was closed while hidden may have turned it off
  return () => {
    clearInterval(timer);
    model.off('change:state', show);
    model.off('change:watched', insist);
    document.removeEventListener('visibilitychange', stand);
    watch(false);
  };
}

export default { render };
