// Command source is relays with strfry's behaviours, in a process of their own: what they cost is
// not counted to the Tendril that is measured. It prints one line of JSON, [Addresses], and ends
// when its standard input does. Go programs speak to it with [tendril.dev/test/bench/feed].
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/bench/feed"
	"tendril.dev/test/corpus"
	"tendril.dev/test/outside"
)

func main() {
	if err := run(); err != nil {
		log.Fatal("source: ", err)
	}
}

func run() error {
	count := flag.Int("relays", 1, "relays, all with the same events")
	copies := flag.Int("copies", 0, "each relay has events of its own: those of so many relays' repositories; 0: all have all")
	limits := outside.Behaviour{}
	odd := flag.Bool("odd", false, "some relays are slow, limited, refuse, or lie: feed.OddRelays")
	flag.IntVar(&limits.Page, "page", 0, "events a filter is answered with; 0: strfry's 500")
	flag.Parse()

	relays := []*outside.Relay{outside.NewRelay(limits)}
	for len(relays) < *count {
		if name := feed.OddRelays[len(relays)]; *odd && name != "" {
			relays = append(relays, outside.NewRelay(feed.Behaviour(name)))
			relays[len(relays)-1].Shut(name == "shut")
		} else if *copies > 0 {
			relays = append(relays, outside.NewRelay(limits))
		} else {
			relays = append(relays, relays[0].Twin())
		}
	}
	failed := make(chan error, len(relays)+1)
	var addresses feed.Addresses
	for _, r := range relays {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("listen for clients: %w", err)
		}
		addresses.Relays = append(addresses.Relays, "ws://"+l.Addr().String())
		go func() { failed <- r.Serve(l) }()
	}
	control, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for control: %w", err)
	}
	addresses.Control = "http://" + control.Addr().String()
	go func() { failed <- http.Serve(control, handler(relays, *copies)) }()
	if err := json.NewEncoder(os.Stdout).Encode(addresses); err != nil {
		return fmt.Errorf("say where the relays are: %w", err)
	}
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		failed <- err
	}()
	return <-failed
}

// handler lets the measuring process fill the relays and ask what they did.
func handler(relays []*outside.Relay, copies int) http.Handler {
	mux := http.NewServeMux()
	load := func(w http.ResponseWriter, lines [][]byte, err error) {
		if err == nil {
			err = loadAmong(relays, copies, lines)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	}
	mux.HandleFunc("POST /load", func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		load(w, corpus.Lines(data), err)
	})
	mux.HandleFunc("POST /file", func(w http.ResponseWriter, r *http.Request) {
		lines, err := corpus.Read(r.FormValue("path"))
		load(w, lines, err)
	})
	mux.HandleFunc("POST /reset", func(http.ResponseWriter, *http.Request) {
		for _, r := range relays {
			r.ResetTraffic()
		}
	})
	mux.HandleFunc("POST /shut", func(_ http.ResponseWriter, r *http.Request) {
		for _, relay := range relays {
			relay.Shut(r.FormValue("yes") == "true")
		}
	})
	mux.HandleFunc("GET /report", func(w http.ResponseWriter, _ *http.Request) {
		report := feed.Report{CPU: cpu()}
		for _, r := range relays {
			report.Relays = append(report.Relays, r.Traffic())
		}
		json.NewEncoder(w).Encode(report)
	})
	return mux
}

// loadAmong gives events to all relays, or each to those that have its repository, and then the
// first relay has every announcement and state besides: it is where a new server learns of them.
func loadAmong(relays []*outside.Relay, copies int, lines [][]byte) error {
	if copies == 0 {
		return outside.Load(lines, func(*nostr.Event) []*outside.Relay { return relays[:1] })
	}
	var unnamed error
	err := outside.Load(lines, func(ev *nostr.Event) (homes []*outside.Relay) {
		repository := feed.Repository(ev)
		if repository == "" {
			unnamed = fmt.Errorf("event %s names no repository", ev.ID)
		}
		for _, i := range feed.Homes(repository, len(relays), copies) {
			homes = append(homes, relays[i])
		}
		if ev.Kind == nostr.KindAnnouncement || ev.Kind == nostr.KindState {
			homes = append(homes, relays[0])
		}
		return homes
	})
	return errors.Join(err, unnamed)
}

// cpu is the time that this process has used so far.
func cpu() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
