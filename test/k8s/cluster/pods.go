package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Pod is what matters of a pod.
type Pod struct {
	Name      string
	Component string // label app.kubernetes.io/component
	IP        string
	Node      string
	Image     string // of its first container
	Ready     bool
	Ending    bool
	Restarts  int // of all its containers
}

// podList is the API's answer, as far as we read it.
type podList struct {
	Items []struct {
		Metadata struct {
			Name              string            `json:"name"`
			Labels            map[string]string `json:"labels"`
			DeletionTimestamp *string           `json:"deletionTimestamp"`
		} `json:"metadata"`
		Spec struct {
			NodeName   string `json:"nodeName"`
			Containers []struct {
				Image string `json:"image"`
			} `json:"containers"`
		} `json:"spec"`
		Status struct {
			PodIP      string `json:"podIP"`
			Conditions []struct {
				Type   string `json:"type"`
				Status string `json:"status"`
			} `json:"conditions"`
			ContainerStatuses []struct {
				RestartCount int `json:"restartCount"`
			} `json:"containerStatuses"`
		} `json:"status"`
	} `json:"items"`
}

// Pods returns the pods of a namespace that are a component of something, by name.
func (c *Cluster) Pods(ctx context.Context, namespace string) ([]Pod, error) {
	var list podList
	if err := c.Get(ctx, "/api/v1/namespaces/"+namespace+"/pods", &list); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.pods(), func(p Pod) bool { return p.Component == "" }), nil
}

func (l podList) pods() []Pod {
	var pods []Pod
	for _, item := range l.Items {
		p := Pod{Name: item.Metadata.Name, Component: item.Metadata.Labels["app.kubernetes.io/component"], IP: item.Status.PodIP, Node: item.Spec.NodeName,
			Ending: item.Metadata.DeletionTimestamp != nil}
		if len(item.Spec.Containers) > 0 {
			p.Image = item.Spec.Containers[0].Image
		}
		for _, c := range item.Status.Conditions {
			if c.Type == "Ready" {
				p.Ready = c.Status == "True"
			}
		}
		for _, c := range item.Status.ContainerStatuses {
			p.Restarts += c.RestartCount
		}
		pods = append(pods, p)
	}
	slices.SortFunc(pods, func(a, b Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

// Of returns the pods of a component that are not about to end.
func Of(pods []Pod, component string) []Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool { return p.Component != component || p.Ending })
}

// Restarted compares pods before and after: which of those that are still there were restarted. A
// pod that was replaced is another one.
func Restarted(before, after []Pod) []string {
	counts := map[string]int{}
	for _, p := range before {
		counts[p.Name] = p.Restarts
	}
	var found []string
	for _, p := range after {
		if was, known := counts[p.Name]; known && p.Restarts > was || !known && p.Restarts > 0 {
			found = append(found, fmt.Sprintf("%s (%d times)", p.Name, p.Restarts-was))
		}
	}
	return found
}

// Gone is the names of the pods before that are not there any more.
func Gone(before, after []Pod) []string {
	names := map[string]bool{}
	for _, p := range before {
		names[p.Name] = true
	}
	for _, p := range after {
		delete(names, p.Name)
	}
	return slices.Sorted(maps.Keys(names))
}
