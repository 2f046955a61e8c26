package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"tendril.dev/test/k8s/report"
)

// task is something that goes on for a while and says what it does.
type task struct {
	stop chan struct{}
	once sync.Once

	mu    sync.Mutex
	lines []string
	done  bool
	err   error
}

// say adds a line for the person who watches.
func (t *task) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, fmt.Sprintf(format, args...))
}

func (t *task) end(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done, t.err = true, err
}

// tasks are those that were begun, by name.
type tasks struct {
	mu    sync.Mutex
	named map[string]*task
}

// begin starts a task that is not there or has ended.
func (ts *tasks) begin(name string, do func(ctx context.Context, t *task) error) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if old := ts.named[name]; old != nil {
		old.mu.Lock()
		defer old.mu.Unlock()
		if !old.done {
			return false
		}
	}
	t := &task{stop: make(chan struct{})}
	if ts.named == nil {
		ts.named = map[string]*task{}
	}
	ts.named[name] = t
	go func() { t.end(do(context.Background(), t)) }()
	return true
}

func (ts *tasks) get(name string) *task {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.named[name]
}

// begin begins a task:
//
//	story              the end-to-end story
//	stock?events=n     puts n events of the past on the relays, all at once
//	flow?events=n&rate=r  publishes n events on the relays, r a second
//	served             waits until everything that was published or acknowledged is served
//	load               users at work, until it is ended
func (w *World) begin(rw http.ResponseWriter, r *http.Request) {
	number := func(name string) int { n, _ := strconv.Atoi(r.URL.Query().Get(name)); return n }
	var do func(ctx context.Context, t *task) error
	switch name := r.PathValue("name"); name {
	case "story":
		do = w.story
	case "stock":
		do = func(ctx context.Context, t *task) error { return w.stock(t, number("events")) }
	case "flow":
		do = func(ctx context.Context, t *task) error { return w.publish(t, number("events"), number("rate")) }
	case "served":
		do = w.served
	case "load":
		do = w.load
	default:
		http.NotFound(rw, r)
		return
	}
	if !w.tasks.begin(r.PathValue("name"), do) {
		http.Error(rw, "it runs already", http.StatusConflict)
		return
	}
	answer(rw, struct{}{})
}

// report tells how a task stands.
func (w *World) report(rw http.ResponseWriter, r *http.Request) {
	t := w.tasks.get(r.PathValue("name"))
	if t == nil {
		http.NotFound(rw, r)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	from, err := strconv.Atoi(r.URL.Query().Get("from"))
	if err != nil || from < 0 || from > len(t.lines) {
		from = 0
	}
	said := report.Task{Lines: t.lines[from:], Next: len(t.lines), Done: t.done}
	if t.err != nil {
		said.Error = t.err.Error()
	}
	answer(rw, said)
}

// end asks a task to end, which it does when it has finished what it began.
func (w *World) end(rw http.ResponseWriter, r *http.Request) {
	t := w.tasks.get(r.PathValue("name"))
	if t == nil {
		http.NotFound(rw, r)
		return
	}
	t.once.Do(func() { close(t.stop) })
	answer(rw, struct{}{})
}
