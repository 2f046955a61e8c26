package k8s

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/logins"
	"tendril.dev/proto"
	"tendril.dev/test/outside"
	"tendril.dev/test/world"
)

const (
	// handOver is for how long two workers may be connected to one relay at once, as the relay sees
	// it: the one that lets go closes its connection first, but the relay notices that in its own
	// time.
	handOver = time.Second
	// settle is for how long users work undisturbed before and after something happens.
	settle = 10 * time.Second
)

// story tells the stories that need no operator through the gateway's Service.
func (r *run) story() {
	began := time.Now()
	r.task("story", 12*time.Minute)
	r.measured("the story", time.Since(began))
}

// scale scales relay workers 1 → 8 → 2 while events flow: nothing is lost, and every relay has one
// owner at all times.
func (r *run) scale() {
	r.scaleTo(1)
	since := r.mustStatus().Now
	flow := r.begin(fmt.Sprintf("flow?events=%d&rate=%d", r.o.events, r.o.rate))
	r.scaleTo(8)
	r.scaleTo(2)
	r.must(flow(time.Duration(r.o.events/r.o.rate)*time.Second*2 + time.Minute))
	r.task("served", 10*time.Minute)
	r.oneOwner(since)
}

// scaleTo scales the relay workers and waits until the relays are shared out among them: claims do
// not change any more, and each relay is connected by the worker that claims it, and by no other.
func (r *run) scaleTo(n int) {
	began, since, claims := time.Now(), time.Now(), map[string]string(nil)
	var connected time.Duration
	r.kubectl("scale", "deployment/relayconn", fmt.Sprintf("--replicas=%d", n))
	r.await(fmt.Sprintf("the relays are shared out among %d workers", n), 5*time.Minute, func() error {
		now, err := r.claims(proto.GroupRelays)
		if err != nil {
			return err
		}
		if !maps.Equal(now, claims) {
			claims, since = now, time.Now()
		}
		pods, err := r.podsOf(r.o.namespace)
		if err != nil {
			return err
		}
		workers := map[string]string{}
		for _, p := range of(pods, "relayconn") {
			if p.ready {
				workers[p.name] = p.ip
			}
		}
		if len(workers) != n {
			return fmt.Errorf("%d of %d workers are ready", len(workers), n)
		}
		s, err := r.status()
		if err != nil {
			return err
		}
		if problem := unshared(s, workers, claims); problem != "" {
			connected = 0
			return errors.New(problem)
		}
		if connected == 0 {
			connected = time.Since(began)
		}
		if time.Since(since) < 5*time.Second {
			return errors.New("claims still change")
		}
		return nil
	})
	shares := map[string]int{}
	for _, worker := range claims {
		shares[worker]++
	}
	r.measured(fmt.Sprintf("from kubectl scale to %d until claims are shared out", n), since.Sub(began))
	r.measured(fmt.Sprintf("from kubectl scale to %d until all relays are connected", n), connected)
	r.measured(fmt.Sprintf("claims with %d workers", n), slices.Sorted(maps.Values(shares)))
}

// unshared says what keeps relays from being shared out: every relay must be claimed by one of the
// workers, and these alone must be connected to it, each from its own address. Workers are name →
// address.
func unshared(s world.Status, workers, claims map[string]string) string {
	holders := map[string][]string{}
	for _, span := range s.Spans {
		if span.Closed.IsZero() {
			holders[span.Relay] = append(holders[span.Relay], span.From)
		}
	}
	for _, url := range s.Relays {
		name, err := proto.EncodeRelay(strings.TrimPrefix(url, "ws://"))
		if err != nil {
			return err.Error()
		}
		worker, claimed := claims[name]
		address, lives := workers[worker]
		switch {
		case !claimed:
			return url + " is not claimed"
		case !lives:
			return fmt.Sprintf("%s is claimed by %s, which is not there any more", url, worker)
		case len(holders[url]) == 0:
			return fmt.Sprintf("%s is not connected (claimed by %s)", url, worker)
		}
		for _, from := range holders[url] {
			if from != address {
				return fmt.Sprintf("%s is claimed by %s (%s), and %s is connected", url, worker, address, from)
			}
		}
	}
	return ""
}

// oneOwner checks that no two workers were connected to one relay since a time, but for a
// hand-over.
func (r *run) oneOwner(since time.Time) {
	s := r.mustStatus()
	worst := overlap(s.Spans, since, s.Now)
	r.measured("two workers at one relay at once, at most", worst)
	if worst > handOver {
		r.Fatalf("two workers were connected to one relay for %v", worst)
	}
}

// overlap is how long two addresses were connected to one relay at most, since a time. Spans that
// are open end now.
func overlap(spans []outside.Span, since, now time.Time) (worst time.Duration) {
	for i, a := range spans {
		for _, b := range spans[i+1:] {
			if a.Relay != b.Relay || a.From == b.From {
				continue
			}
			from, until := a.Opened, now
			if b.Opened.After(from) {
				from = b.Opened
			}
			for _, s := range []outside.Span{a, b} {
				if !s.Closed.IsZero() && s.Closed.Before(until) {
					until = s.Closed
				}
			}
			if !from.Before(since) {
				worst = max(worst, until.Sub(from))
			}
		}
	}
	return worst
}

// underLoad lets users work, and events flow, while something happens. Then everything is served
// that was acknowledged, and every user's request has succeeded, sooner or later. It returns how
// many failed at the first try.
func (r *run) underLoad(what string, events int, happens func()) (failed int) {
	users, flow := r.begin("load"), func(time.Duration) error { return nil }
	if events > 0 {
		flow = r.begin(fmt.Sprintf("flow?events=%d&rate=25", events))
	}
	time.Sleep(settle)
	happens()
	time.Sleep(settle)
	r.do("kubectl", "get", "--raw", r.atWorld("/end"))
	r.must(users(4 * time.Minute))
	r.must(flow(5 * time.Minute))
	sum := world.Sum(r.mustStatus().Clients)
	r.measured(what, fmt.Sprintf("%d requests, %d failed at the first try, %d moved, slowest %v", sum.Requests, sum.Failed, sum.Moved, sum.Slowest.Round(time.Millisecond)))
	if sum.GaveUp > 0 {
		r.Fatalf("%d users' requests never succeeded", sum.GaveUp)
	}
	r.task("served", 10*time.Minute)
	return sum.Failed
}

// deletePods deletes the pod that writes the log, a purgatory pod and the NATS pod that leads the
// log, one after the other, under load. No other pod restarts.
func (r *run) deletePods() {
	since := r.mustStatus().Now
	r.underLoad("pods deleted under load", 3000, func() {
		writers, err := r.claims(proto.GroupWriter)
		r.must(err)
		r.deletePod(writers[proto.KeyLog])
		r.deletePod(of(r.pods(), "purgatory")[0].name)
		r.deletePod(r.leader())
	})
	r.oneOwner(since)
}

// deletePod deletes a pod and waits until another is in its place and everything is ready. All
// other pods must be the same as before, and their processes too.
func (r *run) deletePod(name string) {
	before, began := r.pods(), time.Now()
	r.kubectl("delete", "pod", name, "--timeout=2m")
	ended := time.Since(began)
	r.ready(4*time.Minute, len(before))
	r.say("deleted %s: gone after %v, everything is ready after %v", name, ended.Round(100*time.Millisecond), time.Since(began).Round(100*time.Millisecond))
	delete(before, name)
	if wrong := changed(before, r.pods()); len(wrong) > 0 {
		r.Fatalf("after %s was deleted: %s", name, strings.Join(wrong, ", "))
	}
	time.Sleep(settle)
}

// rollout rolls another image out to all services under load, and back: no user's request fails.
func (r *run) rollout() {
	failed := r.underLoad("a new image rolled out, and undone", 0, func() {
		r.rollTo(imageNext, "set", "image", "", "tendril="+imageNext)
		time.Sleep(settle)
		r.rollTo(imageTendril, "rollout", "undo", "")
	})
	if failed > 0 {
		r.Errorf("%d users' requests failed during the rollout", failed)
	}
}

// rollTo gives each Deployment, whose name is the empty word, to a command, and waits until only
// that image runs.
func (r *run) rollTo(image string, command ...string) {
	for _, d := range deployments {
		args := slices.Clone(command)
		args[slices.Index(args, "")] = d
		r.kubectl(args...)
	}
	r.ready(8*time.Minute, 0)
	r.await("only "+image+" runs", 3*time.Minute, func() error {
		pods, err := r.podsOf(r.o.namespace)
		for _, p := range pods {
			if p.component != "nats" && p.image != image {
				return fmt.Errorf("%s runs %s", p.name, p.image)
			}
		}
		return err
	})
}

// logins rotates all NATS logins under load: new ones beside the old ones, given to the running
// pods, then the old ones are taken away. No process restarts.
func (r *run) logins() {
	before := r.pods()
	r.underLoad("logins rotated", 0, func() {
		old, err := r.operatorLogin()
		r.must(err)
		r.changeLogins("rotate")
		added, err := r.operatorLogin()
		r.must(err)
		r.reload(added, true)
		r.await("every service sees its new login", 4*time.Minute, r.oldLogins)
		r.changeLogins("retire")
		r.reload(old, false)
		r.ready(2*time.Minute, len(before))
	})
	if wrong := changed(before, r.pods()); len(wrong) > 0 {
		r.Fatalf("these did not live through it: %s", strings.Join(wrong, ", "))
	}
}

// changeLogins changes the folder of logins and applies the secrets that hold them.
func (r *run) changeLogins(verb string) {
	r.do(filepath.Join(r.dir, "tendril"), "logins", verb, r.loginsFolder())
	r.do("kubectl", "apply", "-k", r.overlayFolder())
}

// oldLogins says which services do not see their new login yet. The image has no shell, but it has
// git, which can tell what is in a file.
func (r *run) oldLogins() error {
	pods, err := r.podsOf(r.o.namespace)
	for _, p := range pods {
		if p.component == "nats" {
			continue
		}
		want := r.do("git", "hash-object", "--no-filters", logins.LoginFile(r.loginsFolder(), p.component))
		got, err := r.try("kubectl", "-n", r.o.namespace, "exec", p.name, "--", "git", "hash-object", "--no-filters", "/etc/tendril/nats/login")
		if err == nil && got != want {
			err = fmt.Errorf("%s sees the old one", p.name)
		}
		if err != nil {
			return err
		}
	}
	return err
}

// reload lets the NATS servers read their users again until each lets a login in, or refuses it.
// The file that a server reads changes some time after its secret, so it is told more than once.
func (r *run) reload(login logins.Login, letIn bool) {
	for _, p := range of(r.pods(), "nats") {
		r.await(p.name+" has read its users again", 4*time.Minute, func() error {
			if _, err := r.try("kubectl", "-n", r.o.namespace, "exec", p.name, "--", "nats-server", "--signal=reload=/run/nats/nats.pid"); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
			defer cancel()
			for url := r.forward(ctx, "pod/"+p.name); ; time.Sleep(300 * time.Millisecond) {
				conn, err := nats.Connect(url, nats.UserInfo(login.User, login.Password), nats.NoReconnect())
				if err == nil {
					conn.Close()
				}
				if is := err == nil; is || errors.Is(err, nats.ErrAuthorization) || ctx.Err() != nil {
					if is != letIn {
						return fmt.Errorf("%s is let in: %v (%v)", login.User, is, err)
					}
					return nil
				}
			}
		})
	}
}

// ban tells that story at all gateways with three relay workers, and does what the operator does
// from this machine. It prints when each gateway follows.
func (r *run) ban() {
	r.scaleTo(3)
	ctx, cancel := context.WithTimeout(r.ctx, 15*time.Minute)
	defer cancel()
	place := world.Place{TB: r.T}
	for _, p := range of(r.pods(), "gateway") {
		place.Other = world.At(r.T, "http"+strings.TrimPrefix(r.forwardPort(ctx, "pod/"+p.name, "7334"), "nats"))
		place.Other.Domain = r.o.domain()
		if place.URL == "" {
			place.Door = place.Other
		}
		r.await("the gateway can be reached", time.Minute, func() error { _, err := world.TryDial(r.T, place.Other.Relay()); return err })
	}
	bus := r.forward(ctx, "service/nats")
	place.Tool = func(args ...string) (string, error) {
		return r.try(append([]string{"env", "NGIT_NATS_URL=" + bus, "NGIT_NATS_LOGIN_FILE=" + logins.LoginFile(r.loginsFolder(), proto.UserOperator), filepath.Join(r.dir, "tendril")}, args...)...)
	}
	r.await("NATS can be reached", time.Minute, func() error { _, err := place.Tool("bans"); return err })
	world.Ban(&place)
	r.scaleTo(2) // as the overlay has it
}

// forward forwards a port of this machine to a NATS server.
func (r *run) forward(ctx context.Context, to string) (url string) {
	return r.forwardPort(ctx, to, "4222")
}

// forwardPort forwards a port of this machine until ctx ends, again whenever kubectl gives up, and
// returns it as a URL of NATS.
func (r *run) forwardPort(ctx context.Context, to, target string) (url string) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // a free port
	r.must(err)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	go func() {
		for ; ctx.Err() == nil; time.Sleep(time.Second) {
			exec.CommandContext(ctx, "kubectl", "-n", r.o.namespace, "port-forward", to, port+":"+target).Run()
		}
	}()
	return "nats://127.0.0.1:" + port
}

// claims is who claims what of a group: name of the key → worker.
func (r *run) claims(group string) (map[string]string, error) {
	js, err := jetstream.New(r.nats)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
	defer cancel()
	claims, err := world.Claims(ctx, js, group)
	workers := map[string]string{}
	for name, c := range claims {
		workers[name] = c.Worker[:max(0, strings.LastIndexByte(c.Worker, '-'))] // the pod
	}
	return workers, err
}

// log is the log's stream.
func (r *run) log() *jetstream.StreamInfo {
	js, err := jetstream.New(r.nats)
	r.must(err)
	log, err := js.Stream(r.ctx, proto.StreamEvents)
	r.must(err)
	return log.CachedInfo()
}

// leader is the NATS server that leads the log; server 0 where one is alone.
func (r *run) leader() string {
	if c := r.log().Cluster; c != nil && c.Leader != "" && c.Name != "" {
		return c.Leader
	}
	return "nats-0"
}

// node turns the node of the NATS server that leads the log off under load, without a word, as a
// loss of power does. Then the operator says that the node is off (docs/kubernetes.md), and all of
// its pods are replaced elsewhere.
func (r *run) node() {
	command := strings.Fields(os.Getenv("K8S_NODE_OFF"))
	if len(command) == 0 {
		r.Fatal("K8S_NODE_OFF is not set: want a command that turns the node off whose name it is given")
	}
	since := r.mustStatus().Now
	r.underLoad("a node turned off under load", 3000, func() {
		pods := r.pods()
		outside, err := r.podsOf(r.o.worldNamespace())
		r.must(err)
		off, nodes := pods[r.leader()].node, map[string]bool{}
		for _, p := range of(pods, "nats") {
			nodes[p.node] = true
			if off == outside[r.world].node {
				off = p.node // never the one where the outside world is
			}
		}
		if len(nodes) < 3 {
			r.Fatalf("the NATS servers are on %d nodes: want three nodes and an overlay with three servers", len(nodes))
		}
		r.do(append(command, off)...)
		r.do("kubectl", "wait", "--for=condition=Ready=Unknown", "node/"+off, "--timeout=3m")
		r.do("kubectl", "taint", "nodes", off, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
		told := time.Now()
		r.await("no pod is on "+off, 6*time.Minute, func() error {
			pods, err := r.podsOf(r.o.namespace)
			for _, p := range pods {
				if p.node == off {
					return fmt.Errorf("%s is", p.name)
				}
			}
			return err
		})
		r.ready(6*time.Minute, len(pods))
		r.measured("from the taint of a node that is off until all its pods are ready elsewhere", time.Since(told))
	})
	r.oneOwner(since)
}
