package k8s

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"tendril.dev/test/world"
)

// try runs a command and returns what it prints; an error has what it complains of.
func (r *run) try(args ...string) (string, error) { return r.tryWith("", args...) }

func (r *run) tryWith(input string, args ...string) (string, error) {
	cmd := exec.CommandContext(r.ctx, args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(input)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}

// do is try for what must not fail.
func (r *run) do(args ...string) string {
	r.Helper()
	out, err := r.try(args...)
	r.must(err)
	return out
}

func (r *run) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// kubectl is do for the namespace of the Tendril.
func (r *run) kubectl(args ...string) string {
	r.Helper()
	return r.do(append([]string{"kubectl", "-n", r.o.namespace}, args...)...)
}

// read reads JSON that kubectl prints.
func (r *run) read(into any, args ...string) error {
	out, err := r.try(append([]string{"kubectl"}, args...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), into)
}

// pod is what matters of a pod.
type pod struct {
	name, component, ip, node, image string
	ready, ending                    bool
	restarts                         int // of all its containers
}

// podsOf returns the pods of a namespace, by name.
func (r *run) podsOf(namespace string) (map[string]pod, error) {
	var list struct {
		Items []struct {
			Metadata struct {
				Name, DeletionTimestamp string
				Labels                  map[string]string
			}
			Spec struct {
				NodeName   string
				Containers []struct{ Image string }
			}
			Status struct {
				PodIP             string
				Conditions        []struct{ Type, Status string }
				ContainerStatuses []struct{ RestartCount int }
			}
		}
	}
	if err := r.read(&list, "-n", namespace, "get", "pods", "-o", "json"); err != nil {
		return nil, err
	}
	pods := map[string]pod{}
	for _, i := range list.Items {
		p := pod{
			name: i.Metadata.Name, component: i.Metadata.Labels["app.kubernetes.io/component"], ip: i.Status.PodIP, node: i.Spec.NodeName,
			image: i.Spec.Containers[0].Image, ending: i.Metadata.DeletionTimestamp != "",
		}
		for _, c := range i.Status.Conditions {
			p.ready = p.ready || c.Type == "Ready" && c.Status == "True"
		}
		for _, c := range i.Status.ContainerStatuses {
			p.restarts += c.RestartCount
		}
		if p.component != "" {
			pods[p.name] = p
		}
	}
	return pods, nil
}

// pods are those of the Tendril.
func (r *run) pods() map[string]pod {
	r.Helper()
	pods, err := r.podsOf(r.o.namespace)
	r.must(err)
	return pods
}

// of returns the pods of a component that are not about to end, in the order of their names.
func of(pods map[string]pod, component string) (some []pod) {
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		if p := pods[name]; p.component == component && !p.ending {
			some = append(some, p)
		}
	}
	return some
}

// changed compares pods before and after: which were restarted, and which are not there any more.
func changed(before, after map[string]pod) (found []string) {
	for name, p := range after {
		if p.restarts > before[name].restarts {
			found = append(found, fmt.Sprintf("%s restarted %d times", name, p.restarts-before[name].restarts))
		}
	}
	for name := range before {
		if _, there := after[name]; !there {
			found = append(found, name+" is gone")
		}
	}
	return found
}

// ready waits until every workload has all its pods, up to date and ready, and there are so many
// pods.
func (r *run) ready(limit time.Duration, pods int) {
	r.Helper()
	for _, w := range append([]string{"statefulset/nats"}, deployments...) {
		r.kubectl("rollout", "status", w, "--timeout="+limit.String())
	}
	r.await("every pod is ready", 3*time.Minute, func() error {
		now, err := r.podsOf(r.o.namespace)
		for _, p := range now {
			if !p.ready || p.ending {
				return fmt.Errorf("%s is not", p.name)
			}
		}
		if err == nil && len(now) < pods {
			err = fmt.Errorf("%d of %d are there", len(now), pods)
		}
		return err
	})
}

// await asks again every second until there is no error, and fails with the last.
func (r *run) await(what string, limit time.Duration, ok func() error) {
	r.Helper()
	deadline := time.Now().Add(limit)
	for err := ok(); err != nil; err = ok() {
		if r.ctx.Err() != nil || time.Now().After(deadline) {
			r.Fatalf("still not after %v: %s: %v", limit, what, err)
		}
		time.Sleep(time.Second)
	}
}

// atWorld is the API server's path to a path of the outside world.
func (r *run) atWorld(path string) string {
	return fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:8080/proxy%s", r.o.worldNamespace(), r.world, path)
}

// status is how the outside world stands.
func (r *run) status() (s world.Status, err error) {
	return s, r.read(&s, "get", "--raw", r.atWorld("/status"))
}

func (r *run) mustStatus() world.Status {
	r.Helper()
	s, err := r.status()
	r.must(err)
	return s
}

// begin begins a task of the outside world, and prints what it says. The function that it returns
// waits until the task has ended.
func (r *run) begin(task string) (end func(limit time.Duration) error) {
	r.Helper()
	cmd := exec.CommandContext(r.ctx, "kubectl", "get", "--raw", r.atWorld("/tasks/"+task))
	out, err := cmd.StdoutPipe()
	r.must(err)
	r.must(cmd.Start())
	ended := make(chan error, 1)
	go func() {
		last := "nothing was said"
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if last = lines.Text(); last != world.Done {
				r.say("%s", last)
			}
		}
		err := cmd.Wait()
		if err == nil && last != world.Done {
			err = errors.New(last)
		}
		ended <- err
	}()
	return func(limit time.Duration) error {
		select {
		case err := <-ended:
			return err
		case <-time.After(limit):
			return fmt.Errorf("%s has not ended after %v", task, limit)
		}
	}
}

// task does a task of the outside world.
func (r *run) task(task string, limit time.Duration) {
	r.Helper()
	r.must(r.begin(task)(limit))
}
