package bus_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

func TestSingleMessages(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{})
	for _, msg := range []*nats.Msg{
		{Subject: "grasp.target.a.example", Data: []byte("one"), Header: nats.Header{proto.HeaderReason: {"s"}}},
		{Subject: "grasp.target.c.example", Data: []byte("two")},
		{Subject: "grasp.target.b.example"},
	} {
		if _, err := b.JS.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	m, found, err := bus.Get(t.Context(), b.JS, proto.StreamTargets, 1)
	if err != nil || !found || string(m.Data) != "one" || m.Header.Get(proto.HeaderReason) != "s" || m.Subject != "grasp.target.a.example" || m.Seq != 1 || m.Time.IsZero() {
		t.Errorf("the first: %+v, %v, %v", m, found, err)
	}
	if m, found, err = bus.Get(t.Context(), b.JS, proto.StreamTargets, 3); err != nil || !found || len(m.Data) != 0 || m.Header != nil {
		t.Errorf("the third: %+v, %v, %v", m, found, err)
	}
	if m, found, err = bus.Last(t.Context(), b.JS, proto.StreamTargets, "grasp.target.c.example"); err != nil || !found || m.Seq != 2 {
		t.Errorf("the last of c: %+v, %v, %v", m, found, err)
	}
	if m, found, err = bus.Get(t.Context(), b.JS, proto.StreamTargets, 4); err != nil || found {
		t.Errorf("one that is not there: %+v, %v, %v", m, found, err)
	}
	if m, found, err = bus.Last(t.Context(), b.JS, proto.StreamTargets, "grasp.target.none.example"); err != nil || found {
		t.Errorf("of a subject without any: %+v, %v, %v", m, found, err)
	}
	if _, _, err = bus.Get(t.Context(), b.JS, "NONE", 1); err == nil {
		t.Error("a stream that is not there has a message")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, _, err = bus.Get(ended, b.JS, proto.StreamTargets, 1); err == nil {
		t.Error("it answers after the end")
	}
}
