package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"tendril.dev/test/k8s/load"
)

// task is something that goes on for a while and says what it does.
type task struct {
	mu  sync.Mutex
	out http.ResponseWriter // nil: what it says is dropped
}

// say tells the person who watches a line.
func (t *task) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.out != nil {
		fmt.Fprintln(t.out, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
		http.NewResponseController(t.out).Flush()
	}
}

// run does a task, and answers with what it says, line by line as it comes; the last line is
// [load.Done], or why the task failed:
//
//	story              the end-to-end story
//	stock?events=n     puts n events of the past on the relays, all at once
//	flow?events=n&rate=r  publishes n events on the relays, r a second
//	served             waits until everything that was published or acknowledged is served
//	load               users at work, until it is ended
func (w *World) run(rw http.ResponseWriter, r *http.Request) {
	number := func(name string) int { n, _ := strconv.Atoi(r.URL.Query().Get(name)); return n }
	do, known := map[string]func(ctx context.Context, t *task) error{
		"story":  w.story,
		"stock":  func(_ context.Context, t *task) error { return w.stock(t, number("events")) },
		"flow":   func(_ context.Context, t *task) error { return w.publish(t, number("events"), number("rate")) },
		"served": w.served,
		"load":   w.load,
	}[r.PathValue("name")]
	if !known {
		http.NotFound(rw, r)
		return
	}
	t := &task{out: rw}
	http.NewResponseController(rw).Flush() // it has begun
	if err := do(r.Context(), t); err != nil {
		t.say("%v", err)
		return
	}
	t.say(load.Done)
}
