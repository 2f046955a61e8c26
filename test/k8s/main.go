// Command k8s proves on a real Kubernetes what Tendril promises there: `make k8s-test`. It builds
// the images, applies an overlay of deploy/k8s into a namespace of its own, and lets an outside
// world (test/k8s/world) of relays, a git server and users meet it: the end-to-end story, relay
// workers scaled while events flow, pods deleted under load, a new image rolled out, logins
// rotated.
//
//	K8S_OVERLAYS   overlays to try, comma-separated (local,local-r3)
//	K8S_LOAD       command that brings an image archive, its last argument, into the cluster. Without
//	               it: ctr if CONTAINERD_ADDRESS is set, kind or minikube if they are there
//	K8S_BUILD      0: the images are in the cluster already
//	K8S_NAMESPACE  namespace that is made and deleted again (tendril-test); the outside world has
//	               one with -world at the end
//	K8S_STEPS      steps, comma-separated (story,scale,delete,rollout,logins): story comes before
//	               the others; or sizes alone
//	K8S_EVENTS     events that flow while relay workers are scaled (20000), or of the cold sync in
//	               sizes (100000)
//	K8S_RATE       events a second that flow (100)
//	K8S_RELAYS     foreign relays (41)
//	K8S_NODE_OFF   command that turns the node off whose name is its last argument, for the step node,
//	               which is for a cluster of at least three nodes and not tried unless K8S_STEPS has it
//	K8S_KEEP       1: leave everything as it is at the end
//
// The cluster needs a default StorageClass that can give ReadWriteMany, or volumes made beforehand.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options are what the environment says.
type options struct {
	overlays, steps      []string
	load, namespace      string
	nodeOff              string
	events, rate, relays int
	keep, build          bool
}

func optionsFrom(get func(name string) string) (options, error) {
	or := func(name, otherwise string) string {
		if value := get(name); value != "" {
			return value
		}
		return otherwise
	}
	var wrong error
	number := func(name, otherwise string) int {
		n, err := strconv.Atoi(or(name, otherwise))
		if err != nil || n < 1 {
			wrong = errors.Join(wrong, fmt.Errorf("%s is %q: want a number", name, get(name)))
		}
		return n
	}
	o := options{
		overlays: strings.Split(or("K8S_OVERLAYS", "local,local-r3"), ","), steps: strings.Split(or("K8S_STEPS", "story,scale,delete,rollout,logins"), ","),
		load: get("K8S_LOAD"), namespace: or("K8S_NAMESPACE", "tendril-test"), nodeOff: get("K8S_NODE_OFF"), keep: get("K8S_KEEP") == "1", build: get("K8S_BUILD") != "0",
	}
	flowing := "20000"
	if o.steps[0] == "sizes" {
		flowing = "100000"
	}
	o.events, o.rate, o.relays = number("K8S_EVENTS", flowing), number("K8S_RATE", "100"), number("K8S_RELAYS", "41")
	for _, step := range o.steps {
		if _, known := steps[step]; !known {
			wrong = errors.Join(wrong, fmt.Errorf("K8S_STEPS: there is no step %q", step))
		}
	}
	return o, wrong
}

// steps are what can be tried, by name. All but story and sizes expect that the story was told.
var steps = map[string]func(r *run, ctx context.Context) error{
	"story": (*run).story, "scale": (*run).scale, "delete": (*run).delete, "rollout": (*run).rollout, "logins": (*run).logins, "node": (*run).node, "sizes": (*run).sizes,
}

func main() {
	o, err := optionsFrom(os.Getenv)
	if err != nil {
		fmt.Fprintf(os.Stderr, "k8s: %v\n", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := try(ctx, o); err != nil {
		fmt.Printf("\nFAILED: %v\n", err)
		os.Exit(1)
	}
	fmt.Println("\nPASSED")
}

// try tries all overlays and prints what was measured.
func try(ctx context.Context, o options) error {
	began := time.Now()
	var images []image
	if o.build {
		var err error
		if images, err = buildImages(ctx, o.load); err != nil {
			return err
		}
	}
	summary := &summary{}
	for _, i := range images {
		summary.add("image "+i.name, fmt.Sprintf("%.1f MiB", float64(i.bytes)/(1<<20)))
	}
	var failed error
	for _, overlay := range o.overlays {
		if failed = tryOverlay(ctx, o, overlay, summary); failed != nil {
			failed = fmt.Errorf("overlay %s: %w", overlay, failed)
			break
		}
	}
	fmt.Printf("\n== measured, in %v ==\n%s", time.Since(began).Round(time.Second), summary)
	return failed
}

// tryOverlay tries one overlay, from nothing to its removal.
func tryOverlay(ctx context.Context, o options, overlay string, s *summary) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := newRun(ctx, o, overlay, s)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			r.diagnose()
		}
		r.removeAll(o.keep)
	}()
	if err := r.apply(ctx); err != nil {
		return err
	}
	for _, name := range o.steps {
		r.headline("%s: %s", overlay, name)
		if err := steps[name](r, ctx); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
