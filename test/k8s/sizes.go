package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
)

// sizes measures what each service uses: idle, in a cold sync of many events that lie on the relays
// before anything is announced, and when as many more are published. The kubelet counts, so git
// processes and what files need in memory are in it.
func (r *run) sizes(ctx context.Context) error {
	events := url.Values{"events": {strconv.Itoa(r.o.events)}, "rate": {strconv.Itoa(max(r.o.rate, 500))}}
	meter := newUsage(r)
	stages := []struct {
		name string
		do   func() error
	}{
		{"idle, for a minute", func() error { time.Sleep(time.Minute); return nil }},
		{fmt.Sprintf("cold sync of %d events", r.o.events), func() error {
			if err := r.begin(ctx, "stock", events).finish(15 * time.Minute); err != nil {
				return err
			}
			meter.begin(ctx)
			if err := r.story(ctx); err != nil {
				return err
			}
			return r.served(ctx)
		}},
		{fmt.Sprintf("%d more, as they are published", r.o.events), func() error {
			if err := r.begin(ctx, "flow", events).finish(20 * time.Minute); err != nil {
				return err
			}
			return r.served(ctx)
		}},
	}
	for _, stage := range stages {
		r.say("%s", stage.name)
		meter.begin(ctx)
		if err := stage.do(); err != nil {
			return err
		}
		took := meter.took()
		time.Sleep(20 * time.Second) // the kubelet looks every 10 or 15 seconds
		fmt.Println(sizesTable(stage.name, took, meter.end()))
		if err := r.sayLog(ctx); err != nil {
			return err
		}
	}
	return nil
}

// sayLog says how large the log is.
func (r *run) sayLog(ctx context.Context) error {
	js, err := jetstream.New(r.bus.conn)
	if err != nil {
		return err
	}
	log, err := js.Stream(ctx, proto.StreamEvents)
	if err != nil {
		return fmt.Errorf("look at the log: %w", err)
	}
	state := log.CachedInfo().State
	r.say("the log has %d messages of %.1f MiB", state.Msgs, float64(state.Bytes)/(1<<20))
	return nil
}

// use is what the pods of a component used.
type use struct {
	pods          int
	memory, peak  float64 // bytes of its largest pod at the end, and at most
	cpu           float64 // seconds of all its pods together
	before, after map[string]float64
}

// usage watches pods.
type usage struct {
	r     *run
	mu    sync.Mutex
	uses  map[string]*use
	since time.Time
	stop  func()
}

func newUsage(r *run) *usage { return &usage{r: r, stop: func() {}} }

// begin measures from now on, and forgets what was measured before.
func (u *usage) begin(ctx context.Context) {
	u.stop()
	u.mu.Lock()
	u.uses, u.since = map[string]*use{}, time.Now()
	u.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			if err := u.look(ctx); err != nil && ctx.Err() == nil {
				u.r.say("measure: %v", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
		}
	})
	u.stop = func() { cancel(); watching.Wait() }
}

func (u *usage) took() time.Duration { return time.Since(u.since) }

// end returns what was used since begin.
func (u *usage) end() map[string]*use {
	u.stop()
	u.stop = func() {}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, of := range u.uses {
		for pod, seconds := range of.after {
			of.cpu += seconds - of.before[pod]
		}
	}
	return u.uses
}

// stats is the kubelet's report of a node, as far as we read it.
type stats struct {
	Pods []struct {
		PodRef struct{ Name, Namespace string } `json:"podRef"`
		CPU    struct {
			Nanoseconds float64 `json:"usageCoreNanoSeconds"`
		} `json:"cpu"`
		Memory struct {
			WorkingSet float64 `json:"workingSetBytes"`
		} `json:"memory"`
	} `json:"pods"`
}

func (u *usage) look(ctx context.Context) error {
	pods, err := u.r.cluster.Pods(ctx, u.r.o.namespace)
	if err != nil {
		return err
	}
	components, nodes := map[string]string{}, map[string]bool{}
	for _, p := range pods {
		components[p.Name], nodes[p.Node] = p.Component, true
	}
	var all stats
	for node := range nodes {
		var s stats
		if err := u.r.cluster.Get(ctx, "/api/v1/nodes/"+node+"/proxy/stats/summary", &s); err != nil {
			return err
		}
		all.Pods = append(all.Pods, s.Pods...)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	count(u.uses, all, u.r.o.namespace, components)
	return nil
}

// count adds a report to what components used. Components are those of pods, by name.
func count(uses map[string]*use, all stats, namespace string, components map[string]string) {
	now := map[string]float64{}
	for _, p := range all.Pods {
		component := components[p.PodRef.Name]
		if p.PodRef.Namespace != namespace || component == "" {
			continue
		}
		of := uses[component]
		if of == nil {
			of = &use{before: map[string]float64{}, after: map[string]float64{}}
			uses[component] = of
		}
		if _, known := of.before[p.PodRef.Name]; !known {
			of.before[p.PodRef.Name] = p.CPU.Nanoseconds / 1e9
			of.pods++
		}
		of.after[p.PodRef.Name] = p.CPU.Nanoseconds / 1e9
		of.peak = max(of.peak, p.Memory.WorkingSet)
		now[component] = max(now[component], p.Memory.WorkingSet)
	}
	for component, memory := range now {
		uses[component].memory = memory
	}
}

// sizesTable is a table in Markdown.
func sizesTable(stage string, took time.Duration, uses map[string]*use) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s (%v):\n\n| | pods | memory of a pod, at most | at the end | processor seconds, all pods |\n| --- | --- | --- | --- | --- |\n", stage, took.Round(time.Second))
	for _, component := range append([]string{"nats"}, services...) {
		if of := uses[component]; of != nil {
			fmt.Fprintf(&b, "| %s | %d | %.0f MiB | %.0f MiB | %.1f |\n", component, of.pods, of.peak/(1<<20), of.memory/(1<<20), of.cpu)
		}
	}
	return b.String()
}
