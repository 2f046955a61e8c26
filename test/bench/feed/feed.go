// Package feed starts and controls the program [tendril.dev/test/bench/source].
package feed

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"time"

	"tendril.dev/test/outside"
)

// Addresses is what the program prints.
type Addresses struct {
	Relays  []string `json:"relays"`
	Control string   `json:"control"`
}

// Report is what its relays did since the last reset.
type Report struct {
	CPU    time.Duration     `json:"cpu"` // of the process, since its start
	Relays []outside.Traffic `json:"relays"`
}

// Total adds up what the relays did. Connected is the first that was, Last the last of all.
func (r Report) Total() (sum outside.Traffic) {
	for _, t := range r.Relays {
		sum.Connections += t.Connections
		sum.Requests += t.Requests
		sum.Reconciled += t.Reconciled
		sum.Sent += t.Sent
		sum.In += t.In
		sum.Live += t.Live
		sum.Out += t.Out
		if !t.Connected.IsZero() && (sum.Connected.IsZero() || t.Connected.Before(sum.Connected)) {
			sum.Connected = t.Connected
		}
		if t.Last.After(sum.Last) {
			sum.Last = t.Last
		}
	}
	return sum
}

// Feed is the running program.
type Feed struct {
	Addresses
	cmd   *exec.Cmd
	stdin io.Closer
}

// Start runs the program at a path.
func Start(program string, args ...string) (*Feed, error) {
	f := &Feed{cmd: exec.Command(program, args...)}
	f.cmd.Stderr = os.Stderr
	stdin, err := f.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	f.stdin = stdin
	stdout, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := f.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the source: %w", err)
	}
	if err := json.NewDecoder(stdout).Decode(&f.Addresses); err != nil {
		return nil, fmt.Errorf("learn where the source listens: %w", err)
	}
	return f, nil
}

// Stop ends the program.
func (f *Feed) Stop() error {
	if err := f.stdin.Close(); err != nil {
		return err
	}
	return f.cmd.Wait()
}

// Load gives events to the relays, which tell no subscriber.
func (f *Feed) Load(lines ...[]byte) error {
	return f.post("/load", bytes.NewReader(bytes.Join(lines, []byte("\n"))))
}

// LoadFile gives the events of a file to the relays.
func (f *Feed) LoadFile(path string) error {
	return f.post("/file?path="+url.QueryEscape(path), nil)
}

// Reset sets what is counted to nothing.
func (f *Feed) Reset() error { return f.post("/reset", nil) }

// Shut refuses connections, or allows them again.
func (f *Feed) Shut(yes bool) error { return f.post(fmt.Sprint("/shut?yes=", yes), nil) }

func (f *Feed) post(path string, body io.Reader) error {
	resp, err := http.Post(f.Control+path, "application/jsonl", body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the source answered %s: %s", resp.Status, text)
	}
	return nil
}

// Report asks what the relays did.
func (f *Feed) Report() (r Report, err error) {
	resp, err := http.Get(f.Control + "/report")
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	return r, json.NewDecoder(resp.Body).Decode(&r)
}
