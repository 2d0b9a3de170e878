/** Tabs: arrow keys, Home and End move between them. */
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";

export type Tab = { id: string; label: string; content: () => ComponentChildren };

export function Tabs(props: { label: string; tabs: readonly Tab[]; active: string; onChange: (id: string) => void }) {
  const base = useId();
  const list = useRef<HTMLDivElement>(null);
  const found = props.tabs.findIndex((tab) => tab.id === props.active);
  const index = Math.max(found, 0);
  const active = props.tabs[index];
  // On a narrow page the list scrolls.
  useEffect(() => {
    const tab = list.current?.children[index];
    if (list.current && tab instanceof HTMLElement)
      list.current.scrollLeft = tab.offsetLeft - list.current.offsetLeft - 40;
  }, [index]);
  const move = (event: KeyboardEvent) => {
    const last = props.tabs.length - 1;
    const steps = { ArrowRight: index + 1, ArrowLeft: index + last, Home: 0, End: last };
    const target = (steps[event.key as keyof typeof steps] ?? Number.NaN) % (last + 1);
    const tab = props.tabs[target];
    if (!tab) return;
    event.preventDefault();
    props.onChange(tab.id);
    (list.current?.children[target] as HTMLElement | undefined)?.focus();
  };
  return (
    <div class="tabs">
      <div role="tablist" aria-label={props.label} ref={list} onKeyDown={move}>
        {props.tabs.map((tab) => (
          <button
            key={tab.id}
            type="button"
            role="tab"
            id={`${base}-${tab.id}`}
            aria-selected={tab === active}
            aria-controls={tab === active ? `${base}-panel` : undefined}
            tabIndex={tab === active ? 0 : -1}
            onClick={() => props.onChange(tab.id)}
          >
            {tab.label}
          </button>
        ))}
      </div>
      {active && (
        <div
          key={active.id}
          role="tabpanel"
          id={`${base}-panel`}
          aria-labelledby={`${base}-${active.id}`}
          tabIndex={-1}
        >
          {active.content()}
        </div>
      )}
    </div>
  );
}
