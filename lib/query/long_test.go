package query_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
)

// answers serves one subject.
func (w *world) answers(subject string, answer query.Answerer) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- query.Answer(ctx, w.Conn, quiet, "test", "", map[string]query.Answerer{subject: answer})
	}()
	w.t.Cleanup(func() { cancel(); must(w.t, <-done) })
}

// TestALongQuestionIsAskedOnce: an answer takes longer than a dead replica is waited for. The asker
// waits for it and does not ask again.
func TestALongQuestionIsAskedOnce(t *testing.T) {
	w := newWorld(t)
	remote := w.remote()
	begun := make(chan struct{}, 100)
	w.answers(proto.SubjectQueryEvents, func(ctx context.Context, _ []byte, send func(any) error) error {
		begun <- struct{}{}
		timer := time.NewTimer(4500 * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C: // the length of the question
			return send(proto.EventsAnswer{Seq: 1 << 60})
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if _, err := query.First(patient(t), remote, nostr.Filter{}); !errors.Is(err, query.ErrNotFound) {
		t.Error(err)
	}
	if len(begun) != 1 {
		t.Errorf("the answer was begun %d times", len(begun))
	}
	if err := remote.Answered(); err != nil {
		t.Errorf("a replica that works on a question does not answer: %v", err)
	}
}

// TestADeadlineTravelsWithTheQuestion: a replica has no more time for an answer than the asker
// waits.
func TestADeadlineTravelsWithTheQuestion(t *testing.T) {
	w := newWorld(t)
	const waits = 5 * time.Second
	left := make(chan time.Duration, 100)
	w.answers(proto.SubjectQueryIDs, func(ctx context.Context, _ []byte, send func(any) error) error {
		deadline, _ := ctx.Deadline()
		left <- time.Until(deadline)
		return send(proto.ReconcileAnswer{})
	})
	ask := func(ctx context.Context) {
		t.Helper()
		for {
			_, err := query.Reconciler{Conn: w.Conn}.Begin(ctx, proto.ReconcileQuery{})
			if !errors.Is(err, nats.ErrNoResponders) { // the service begins
				must(t, err)
				return
			}
		}
	}
	ask(patient(t))
	<-left
	ctx, cancel := context.WithTimeout(t.Context(), waits)
	defer cancel()
	ask(ctx)
	if d := <-left; d > waits {
		t.Errorf("the replica goes on for %s, and the asker waits for %s", d, waits)
	}
}

// TestADeadReplicaIsNotWaitedFor: of two replicas one takes questions and tells nothing, because it
// was killed. Each question is answered by the other in the end.
func TestADeadReplicaIsNotWaitedFor(t *testing.T) {
	w := newWorld(t)
	ev := event(1, 1, "first")
	w.replica(w.accept(ev))
	remote := w.remote()
	has(t, remote, ev) // then the replica answers
	taken := make(chan struct{}, 1000)
	_, err := w.Conn.QueueSubscribe(proto.SubjectQueryEvents, "q", func(*nats.Msg) { taken <- struct{}{} })
	must(t, err)
	must(t, w.Conn.Flush())
	for len(taken) == 0 {
		if !has(t, remote, ev)[0] {
			t.Fatal("unknown")
		}
	}
}

// TestTooManyQuestionsAreRefused: what waits at a replica is bounded, and who asks more is told at
// once.
func TestTooManyQuestionsAreRefused(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	w.answers(proto.SubjectQueryIDs, func(_ context.Context, _ []byte, send func(any) error) error {
		<-release
		return send(proto.ReconcileAnswer{})
	})
	ends := make(chan error, 300)
	ctx := patient(t)
	for range cap(ends) {
		go func() {
			for {
				_, err := query.Reconciler{Conn: w.Conn}.Begin(ctx, proto.ReconcileQuery{})
				if !errors.Is(err, nats.ErrNoResponders) { // the service begins
					ends <- err
					return
				}
			}
		}()
	}
	for range cap(ends) - (8 + 256) {
		if err := <-ends; err == nil {
			t.Error("answered")
		}
	}
	close(release)
	for range 8 + 256 {
		must(t, <-ends)
	}
}
