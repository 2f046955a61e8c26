package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"tendril.dev/proto"
	"tendril.dev/test/k8s/cluster"
	"tendril.dev/test/k8s/load"
)

// settle is for how long users work undisturbed before and after something happens.
const settle = 10 * time.Second

// underLoad lets users work, and events flow, while something happens. It returns how the users'
// requests went, and that everything is served which was acknowledged, or why not.
func (r *run) underLoad(ctx context.Context, events int, happens func() error) (load.Tally, error) {
	users := r.begin(ctx, "load", nil)
	var flow *task
	if events > 0 {
		flow = r.begin(ctx, "flow", url.Values{"events": {fmt.Sprint(events)}, "rate": {"25"}})
	}
	time.Sleep(settle)
	err := happens()
	time.Sleep(settle)
	err = errors.Join(err, r.cluster.Post(ctx, r.worldPath("/end")), users.finish(4*time.Minute))
	s, failed := r.status(ctx)
	if err = errors.Join(err, failed); err != nil {
		return load.Tally{}, err
	}
	if flow != nil {
		if err := flow.finish(5 * time.Minute); err != nil {
			return load.Tally{}, err
		}
	}
	sum := load.Sum(s.Clients)
	if sum.GaveUp > 0 {
		return sum, fmt.Errorf("%d users' requests never succeeded", sum.GaveUp)
	}
	return sum, r.served(ctx)
}

// requestsLine describes how requests went.
func requestsLine(t load.Tally) string {
	return fmt.Sprintf("%d requests, %d failed at the first try, %d moved, slowest %v", t.Requests, t.Failed, t.Moved, t.Slowest.Round(time.Millisecond))
}

// delete deletes the pod that writes the log, a purgatory pod and the NATS pod that leads the log,
// one after the other, under load: nothing that was acknowledged is lost, everything that relays
// have arrives, users' requests succeed sooner or later, and no other pod restarts.
func (r *run) delete(ctx context.Context) error {
	since, err := r.status(ctx)
	if err != nil {
		return err
	}
	sum, err := r.underLoad(ctx, 3000, func() error {
		writers, err := r.bus.claims(ctx, proto.GroupWriter)
		if err != nil {
			return err
		}
		if err := r.deletePod(ctx, writers[proto.KeyLog], "the pod that writes the log"); err != nil {
			return err
		}
		pods, err := r.cluster.Pods(ctx, r.o.namespace)
		if err != nil {
			return err
		}
		if err := r.deletePod(ctx, cluster.Of(pods, "purgatory")[0].Name, "a purgatory pod"); err != nil {
			return err
		}
		leader, err := r.bus.leader(ctx)
		if err != nil {
			return err
		}
		return r.deletePod(ctx, leader, "the NATS pod that leads the log")
	})
	r.summary.add(r.overlay+": pods deleted under load", requestsLine(sum))
	if err != nil {
		return err
	}
	return r.oneOwner(ctx, since.Now)
}

// deletePod deletes a pod and waits until another is in its place and everything is ready. All
// other pods must be the same as before, and their processes too.
func (r *run) deletePod(ctx context.Context, name, what string) error {
	before, err := r.cluster.Pods(ctx, r.o.namespace)
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := cluster.Kubectl(ctx, "-n", r.o.namespace, "delete", "pod", name, "--timeout=2m"); err != nil {
		return err
	}
	ended := time.Since(began)
	if err := r.allReady(ctx, 4*time.Minute); err != nil {
		return err
	}
	if err := r.await(ctx, "every pod is ready", 3*time.Minute, func() string { return r.unready(ctx, len(before)) }); err != nil {
		return err
	}
	r.say("deleted %s, %s: gone after %v, everything is ready after %v", what, name, ended.Round(100*time.Millisecond), time.Since(began).Round(100*time.Millisecond))
	after, err := r.cluster.Pods(ctx, r.o.namespace)
	if err != nil {
		return err
	}
	if restarted := cluster.Restarted(before, after); len(restarted) > 0 {
		return fmt.Errorf("after %s was deleted these restarted: %s", name, strings.Join(restarted, ", "))
	}
	if gone := slices.DeleteFunc(cluster.Gone(before, after), func(n string) bool { return n == name }); len(gone) > 0 {
		return fmt.Errorf("after %s was deleted these are gone too: %s", name, strings.Join(gone, ", "))
	}
	time.Sleep(settle)
	return nil
}

// unready says which pods are not ready, or how many are missing.
func (r *run) unready(ctx context.Context, want int) string {
	pods, err := r.cluster.Pods(ctx, r.o.namespace)
	if err != nil {
		return err.Error()
	}
	var missing []string
	for _, p := range pods {
		if !p.Ready || p.Ending {
			missing = append(missing, p.Name)
		}
	}
	if len(missing) > 0 {
		return strings.Join(missing, ", ")
	}
	if len(pods) < want {
		return fmt.Sprintf("%d of %d pods are there", len(pods), want)
	}
	return ""
}

// rollout rolls another image out to all services under load, and back: no user's request fails.
func (r *run) rollout(ctx context.Context) error {
	sum, err := r.underLoad(ctx, 0, func() error {
		if err := r.rollTo(ctx, imageNext, func(service string) []string {
			return []string{"set", "image", "deployment/" + service, "tendril=" + imageNext}
		}); err != nil {
			return err
		}
		time.Sleep(settle)
		return r.rollTo(ctx, imageTendril, func(service string) []string { return []string{"rollout", "undo", "deployment/" + service} })
	})
	r.summary.add(r.overlay+": a new image rolled out, and undone", requestsLine(sum))
	if err == nil && sum.Failed > 0 {
		err = fmt.Errorf("%d users' requests failed during the rollout", sum.Failed)
	}
	return err
}

// rollTo gives all Deployments a command that changes their image, and waits until only that image
// runs.
func (r *run) rollTo(ctx context.Context, image string, command func(service string) []string) error {
	began := time.Now()
	for _, s := range services {
		if _, err := cluster.Kubectl(ctx, append([]string{"-n", r.o.namespace}, command(s)...)...); err != nil {
			return err
		}
	}
	if err := r.allReady(ctx, 8*time.Minute); err != nil {
		return err
	}
	err := r.await(ctx, "only "+image+" runs", 3*time.Minute, func() string {
		pods, err := r.cluster.Pods(ctx, r.o.namespace)
		if err != nil {
			return err.Error()
		}
		for _, p := range pods {
			if slices.Contains(services, p.Component) && (p.Image != image || !p.Ready || p.Ending) {
				return p.Name + " runs " + p.Image
			}
		}
		return ""
	})
	r.say("rolled out %s: %v", image, time.Since(began).Round(time.Second))
	return err
}
