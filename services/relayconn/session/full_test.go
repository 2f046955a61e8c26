package session_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// full is a play in which ingest takes nothing until there is room.
type full struct {
	*play
	room chan struct{} // closed: there is
	read int           // messages that the session has taken; guarded by the play's lock
}

// Req answers as the play does, and counts what is read of it.
func (f *full) Req(ctx context.Context, sub string, filters []nostr.Filter) error {
	var answer []wire.Message
	f.with(func() {
		f.asked[sub] = filters
		f.log = append(f.log, "REQ "+sub)
		for _, ev := range f.stored {
			if nostr.Filters(filters).Match(ev) && len(answer) < filters[0].Limit {
				answer = append(answer, wire.Message{Kind: wire.Event, Sub: sub, Event: ev})
			}
		}
	})
	answer = append(answer, wire.Message{Kind: wire.EOSE, Sub: sub})
	go func() {
		for _, m := range answer {
			select {
			case f.messages <- m:
				f.with(func() { f.read++ })
			case <-ctx.Done():
				return
			}
		}
	}()
	return nil
}

// Offer waits for room, as a sender does whose window is full.
func (f *full) Offer(ctx context.Context, c candidates.Candidate) error {
	select {
	case <-f.room:
		return f.play.Offer(ctx, c)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestNoRoomForTenMinutes: ingest takes nothing for ten minutes. Nothing is read from the relay
// beyond what the intake has room for meanwhile, which is what slows it down; it is not blamed for
// its silence, no request is taken back or put again, and when there is room everything comes,
// once.
func TestNoRoomForTenMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const stored, roomy = 400, 500
		f := &full{play: newPlay(t), room: make(chan struct{})}
		generous := rules
		generous.PageLimit = roomy
		in := intake.New(intake.Options{Offerer: f})
		go in.Run(t.Context())
		f.session = session.New(session.Options{
			Relay: "wss://r.example.com", Rules: generous, Asker: f, Intake: in.Open("wss://r.example.com"), Observer: f, Log: slog.New(slog.DiscardHandler),
		})
		for i := range stored {
			ev := &nostr.Event{Kind: 30617, CreatedAt: nostr.Timestamp(10_000 - i), Content: strings.Repeat("x", 40<<10)}
			if err := ev.Sign(key); err != nil {
				t.Fatal(err)
			}
			f.stored = append(f.stored, ev)
		}
		f.run(session.Start{})
		time.Sleep(time.Minute)
		synctest.Wait()
		var read, asked int
		f.with(func() { read, asked = f.read, len(f.log) })
		if read > stored/2 {
			t.Errorf("%d of %d events were read though there is no room", read, stored)
		}
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		select {
		case err := <-f.done:
			t.Fatalf("the session has ended: %v", err)
		default:
		}
		f.with(func() {
			if f.read != read {
				t.Errorf("%d messages were read in nine minutes without room", f.read-read)
			}
			if len(f.log) != asked {
				t.Errorf("asked again: %v", f.log)
			}
			if len(f.offered) != 0 {
				t.Errorf("%d events were offered", len(f.offered))
			}
			for _, st := range f.statuses {
				if st.Connection != session.Syncing {
					t.Errorf("status %+v", st)
				}
			}
		})
		close(f.room)
		time.Sleep(generous.Settle + time.Second)
		synctest.Wait()
		if st := f.status(); st.Connection != session.Connected || !st.CaughtUp {
			t.Errorf("with room: %+v", st)
		}
		times := map[string]int{}
		f.with(func() {
			for _, c := range f.offered {
				times[c.Event.ID]++
			}
		})
		for _, ev := range f.stored {
			if times[ev.ID] != 1 {
				t.Errorf("%s was offered %d times", fmt.Sprint(ev.CreatedAt), times[ev.ID])
			}
		}
		f.stop()
	})
}
