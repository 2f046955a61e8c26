package repository

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"tendril.dev/lib/nostr"
)

const (
	// waitingFolder of a repository has a file for each reference below refs/nostr/ that was pushed
	// before its event: who pushed it, and how much it takes up.
	waitingFolder = "waiting"
	// maxWaiting bounds the files that are read there, maxClientKey what is read of one.
	maxWaiting   = 10_000
	maxClientKey = 64
)

// WaitingPush is a reference below refs/nostr/ that was pushed before its event.
type WaitingPush struct {
	Event  string // id
	Client string // key of the client that pushed it; empty: not known
	Bytes  int64  // that it takes up
}

// SetWaiting notes durably who pushes a reference and how much it takes up. It is called before the
// reference is there.
func (r *Repo) SetWaiting(p WaitingPush) error {
	if !nostr.IsHex64(p.Event) || p.Bytes < 0 || len(p.Client) > maxClientKey || strings.ContainsAny(p.Client, " \n") {
		return fmt.Errorf("note a push that waits for its event: %q by %q cannot be noted", p.Event, p.Client)
	}
	err := os.Mkdir(r.in(waitingFolder), 0o755)
	if err == nil {
		err = syncPath(r.path)
	} else if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		err = writeDurably(r.in(waitingFolder, p.Event), fmt.Sprintf("%d %s\n", p.Bytes, p.Client))
	}
	if err != nil {
		return fmt.Errorf("note a push that waits for its event: %w", err)
	}
	return nil
}

// Waiting returns what is noted. A file that makes no sense counts as one without client and bytes.
// It starts no git.
func (r *Repo) Waiting() ([]WaitingPush, error) {
	folder, err := os.Open(r.in(waitingFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what waits for its event: %w", err)
	}
	defer folder.Close()
	names, err := folder.Readdirnames(maxWaiting)
	if err != nil && len(names) == 0 {
		return nil, nil // it is empty
	}
	var all []WaitingPush
	for _, name := range names {
		if !nostr.IsHex64(name) {
			continue
		}
		content, err := readShort(r.in(waitingFolder, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read what waits for its event: %w", err)
		}
		all = append(all, parseWaiting(name, content))
	}
	return all, nil
}

func parseWaiting(event, content string) WaitingPush {
	p := WaitingPush{Event: event}
	size, client, ok := strings.Cut(strings.TrimSuffix(content, "\n"), " ")
	bytes, err := strconv.ParseInt(size, 10, 64)
	if ok && err == nil && bytes >= 0 && len(client) <= maxClientKey {
		p.Bytes, p.Client = bytes, client
	}
	return p
}

// ForgetWaiting removes a note. One that is not there is no error.
func (r *Repo) ForgetWaiting(event string) error {
	if !nostr.IsHex64(event) {
		return fmt.Errorf("forget a push that waited for its event: %q is no event id", event)
	}
	if err := removeFile(r.in(waitingFolder, event)); err != nil {
		return fmt.Errorf("forget a push that waited for its event: %w", err)
	}
	return nil
}
