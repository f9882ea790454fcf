/** The same view as a widget in a notebook; its kernel feeds it, so it needs no server. */

import { GpuShareView } from './view';

interface IWidgetModel {
  get(name: string): string;
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
  // a hidden page wants nothing of the kernel, and so nothing of the broker
  const stand = () => {
    model.set('watched', !document.hidden);
    model.save_changes();
  };
  const timer = setInterval(() => view.tick(performance.now()), 1000);
  model.on('change:state', show);
  document.addEventListener('visibilitychange', stand);
  show();
  return () => {
    clearInterval(timer);
    model.off('change:state', show);
    document.removeEventListener('visibilitychange', stand);
  };
}

export default { render };
