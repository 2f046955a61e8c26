package cluster

import (
	"encoding/json"
	"reflect"
	"testing"
)

const twoPods = `{"items":[
 {"metadata":{"name":"relayconn-b","labels":{"app.kubernetes.io/component":"relayconn"},"deletionTimestamp":"2026-01-01T00:00:00Z"},
  "spec":{"containers":[{"image":"tendril:dev"}]},
  "status":{"podIP":"10.0.0.2","conditions":[{"type":"Ready","status":"False"}],"containerStatuses":[{"restartCount":2}]}},
 {"metadata":{"name":"relayconn-a","labels":{"app.kubernetes.io/component":"relayconn"}},
  "spec":{"nodeName":"node1","containers":[{"image":"tendril:dev"}]},
  "status":{"podIP":"10.0.0.1","conditions":[{"type":"PodScheduled","status":"True"},{"type":"Ready","status":"True"}],
   "containerStatuses":[{"restartCount":1},{"restartCount":0}]}},
 {"metadata":{"name":"waits"},"spec":{"containers":[]},"status":{}}]}`

func TestPods(t *testing.T) {
	t.Parallel()
	var list podList
	if err := json.Unmarshal([]byte(twoPods), &list); err != nil {
		t.Fatal(err)
	}
	got := list.pods()
	want := []Pod{
		{Name: "relayconn-a", Component: "relayconn", IP: "10.0.0.1", Node: "node1", Image: "tendril:dev", Ready: true, Restarts: 1},
		{Name: "relayconn-b", Component: "relayconn", IP: "10.0.0.2", Image: "tendril:dev", Ending: true, Restarts: 2},
		{Name: "waits"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the pods are %+v", got)
	}
	if of := Of(got, "relayconn"); len(of) != 1 || of[0].Name != "relayconn-a" {
		t.Errorf("of relayconn are %+v", of)
	}
}

func TestRestartedAndGone(t *testing.T) {
	t.Parallel()
	before := []Pod{{Name: "a", Restarts: 1}, {Name: "b"}, {Name: "c"}}
	after := []Pod{{Name: "a", Restarts: 1}, {Name: "b", Restarts: 2}, {Name: "d"}, {Name: "e", Restarts: 1}}
	if got, want := Restarted(before, after), []string{"b (2 times)", "e (1 times)"}; !reflect.DeepEqual(got, want) {
		t.Errorf("restarted were %q, want %q", got, want)
	}
	if got, want := Gone(before, after), []string{"c"}; !reflect.DeepEqual(got, want) {
		t.Errorf("gone are %q, want %q", got, want)
	}
}
