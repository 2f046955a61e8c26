package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"tendril.dev/test/k8s/cluster"
)

// node turns a node off under load, without a word, as a loss of power does: nothing that was
// acknowledged is lost, everything that relays have arrives, and users' requests succeed sooner or
// later. Then the operator says that the node is off, and all of its pods are replaced elsewhere.
func (r *run) node(ctx context.Context) error {
	if r.o.nodeOff == "" {
		return errors.New("K8S_NODE_OFF is not set: want a command that turns the node off whose name it is given")
	}
	since, err := r.status(ctx)
	if err != nil {
		return err
	}
	var off string
	sum, err := r.underLoad(ctx, 3000, func() error {
		if off, err = r.unlucky(ctx); err != nil {
			return err
		}
		return r.turnOff(ctx, off)
	})
	r.summary.add(r.overlay+": a node turned off under load", requestsLine(sum))
	if err != nil {
		return err
	}
	return r.oneOwner(ctx, since.Now)
}

// unlucky is the node to turn off: the one of the NATS server that leads the log, or another that
// has a NATS server, but never the one where the outside world is.
func (r *run) unlucky(ctx context.Context) (string, error) {
	leader, err := r.bus.leader(ctx)
	if err != nil {
		return "", err
	}
	outside, err := r.cluster.Pods(ctx, r.worldNamespace())
	if err != nil {
		return "", err
	}
	pods, err := r.cluster.Pods(ctx, r.o.namespace)
	if err != nil {
		return "", err
	}
	nats := cluster.Of(pods, "nats")
	nodes := map[string]int{}
	for _, p := range nats {
		nodes[p.Node]++
	}
	if len(nodes) < 3 {
		return "", fmt.Errorf("the NATS servers are on %d nodes: want three nodes and an overlay with three servers", len(nodes))
	}
	first := slices.IndexFunc(nats, func(p cluster.Pod) bool { return p.Name == leader })
	for i := range nats {
		if n := nats[(max(first, 0)+i)%len(nats)].Node; !slices.ContainsFunc(outside, func(p cluster.Pod) bool { return p.Node == n }) {
			return n, nil
		}
	}
	return "", errors.New("every node with a NATS server has the outside world")
}

// turnOff turns a node off, waits until Kubernetes has noticed, and says so as an operator does who
// knows that it will not come back by itself (docs/kubernetes.md).
func (r *run) turnOff(ctx context.Context, node string) error {
	pods, err := r.cluster.Pods(ctx, r.o.namespace)
	if err != nil {
		return err
	}
	var there []string
	for _, p := range pods {
		if p.Node == node {
			there = append(there, p.Name)
		}
	}
	command := append(strings.Fields(r.o.nodeOff), node)
	began := time.Now()
	if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("turn %s off: %w: %s", node, err, out)
	}
	r.say("turned %s off, and with it %s", node, strings.Join(there, ", "))
	if _, err := cluster.Kubectl(ctx, "wait", "--for=condition=Ready=Unknown", "node/"+node, "--timeout=3m"); err != nil {
		return err
	}
	r.say("Kubernetes has noticed after %v", time.Since(began).Round(time.Second))
	if _, err := cluster.Kubectl(ctx, "taint", "nodes", node, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"); err != nil {
		return err
	}
	told := time.Now()
	if err := r.allReady(ctx, 6*time.Minute); err != nil {
		return err
	}
	err = r.await(ctx, "every pod is ready elsewhere", 3*time.Minute, func() string {
		if problem := r.unready(ctx, len(pods)); problem != "" {
			return problem
		}
		return r.on(ctx, node)
	})
	r.say("all of its pods were replaced elsewhere, %v after the operator has said that it is off", time.Since(told).Round(time.Second))
	r.measured("from the taint of a node that is off until all its pods are ready elsewhere", time.Since(told))
	return err
}

// on says which pods are on a node.
func (r *run) on(ctx context.Context, node string) string {
	pods, err := r.cluster.Pods(ctx, r.o.namespace)
	if err != nil {
		return err.Error()
	}
	for _, p := range pods {
		if p.Node == node {
			return p.Name + " is on " + node
		}
	}
	return ""
}
