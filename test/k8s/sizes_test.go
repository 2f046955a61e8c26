package k8s

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// sizes measures what each service needs: idle, in a cold sync of many events that lie on the
// relays before anything is announced, and when as many more are published.
func (r *run) sizes() {
	r.use("idle, for a minute", func() { time.Sleep(time.Minute) })
	r.task(fmt.Sprintf("stock?events=%d", r.o.events), 15*time.Minute)
	r.use(fmt.Sprintf("cold sync of %d events", r.o.events), func() {
		r.story()
		r.task("served", 10*time.Minute)
	})
	r.use(fmt.Sprintf("%d more, as they are published", r.o.events), func() {
		r.task(fmt.Sprintf("flow?events=%d&rate=%d", r.o.events, max(r.o.rate, 500)), 20*time.Minute)
		r.task("served", 10*time.Minute)
	})
}

// use prints what pods use while something is done. The kubelet counts, so git processes and what
// files need in memory are in it.
func (r *run) use(what string, do func()) {
	r.say("%s", what)
	uses := map[string]*use{} // by component
	ctx, stop := context.WithCancel(r.ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for ; ctx.Err() == nil; time.Sleep(5 * time.Second) {
			if err := r.look(uses); err != nil {
				r.say("measure: %v", err)
			}
		}
	}()
	began := time.Now()
	do()
	took := time.Since(began)
	time.Sleep(20 * time.Second) // the kubelet looks every 10 or 15 seconds
	stop()
	<-watched
	state := r.log().State
	fmt.Printf("\n%s (%v; the log has %d messages of %.1f MiB):\n\n| | pods | memory of a pod, at most | at the end | processor seconds, all pods |\n| --- | --- | --- | --- | --- |\n",
		what, took.Round(time.Second), state.Msgs, float64(state.Bytes)/(1<<20))
	for _, component := range slices.Sorted(maps.Keys(uses)) {
		u, cpu := uses[component], 0.0
		for pod, seconds := range u.last {
			cpu += seconds - u.first[pod]
		}
		fmt.Printf("| %s | %d | %.0f MiB | %.0f MiB | %.1f |\n", component, len(u.first), u.peak/(1<<20), u.memory/(1<<20), cpu)
	}
}

// use is what the pods of a component used.
type use struct {
	memory, peak float64            // bytes of its largest pod now, and at most
	first, last  map[string]float64 // seconds of processors, by pod
}

// look adds what the kubelets say now.
func (r *run) look(uses map[string]*use) error {
	pods, err := r.podsOf(r.o.namespace)
	if err != nil {
		return err
	}
	nodes := map[string]bool{}
	for _, p := range pods {
		nodes[p.node] = true
	}
	for _, u := range uses {
		u.memory = 0
	}
	for node := range nodes {
		var stats struct {
			Pods []struct {
				PodRef struct{ Name, Namespace string }
				CPU    struct{ UsageCoreNanoSeconds float64 }
				Memory struct{ WorkingSetBytes float64 }
			}
		}
		if err := r.read(&stats, "get", "--raw", "/api/v1/nodes/"+node+"/proxy/stats/summary"); err != nil {
			return err
		}
		for _, p := range stats.Pods {
			component, name := pods[p.PodRef.Name].component, p.PodRef.Name
			if p.PodRef.Namespace != r.o.namespace || component == "" {
				continue
			}
			u := uses[component]
			if u == nil {
				u = &use{first: map[string]float64{}, last: map[string]float64{}}
				uses[component] = u
			}
			u.last[name] = p.CPU.UsageCoreNanoSeconds / 1e9
			if _, known := u.first[name]; !known {
				u.first[name] = u.last[name]
			}
			u.memory = max(u.memory, p.Memory.WorkingSetBytes)
			u.peak = max(u.peak, u.memory)
		}
	}
	return nil
}
