package repository

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"tendril.dev/lib/nostr"
)

// endedFile of a repository says since when and why it is not hosted any more.
const endedFile = "ended"

// Ended is what is noted in the folder of a repository that is not hosted any more.
type Ended struct {
	// Announcement is the id of the owner's last announcement: the one that was deleted, or that
	// does not list us. Another one would be another end.
	Announcement string    `json:"announcement"`
	Reason       string    `json:"reason"`
	Since        time.Time `json:"since"`
	// Counted is how much of the time for which the repository is kept has passed, and Seen the
	// time up to which that was counted; zero: nothing was counted since Since.
	Counted time.Duration `json:"counted_ns,omitempty"`
	Seen    time.Time     `json:"seen,omitzero"`
	// Kept: an operator has cancelled the removal.
	Kept bool `json:"kept,omitempty"`
}

// SetEnded notes durably that the hosting has ended.
func (r *Repo) SetEnded(e Ended) error {
	content, err := json.Marshal(e)
	if err == nil {
		err = writeDurably(r.in(endedFile), string(content)+"\n")
	}
	if err != nil {
		return fmt.Errorf("note that the hosting has ended: %w", err)
	}
	return nil
}

// Ended returns what SetEnded has noted, nil if nothing is. A note that makes no sense counts as
// none: it is made anew, and the repository is kept longer.
func (r *Repo) Ended() (*Ended, error) {
	content, err := readShort(r.in(endedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read since when the hosting has ended: %w", err)
	}
	return parseEnded(content), nil
}

func parseEnded(content string) *Ended {
	var e Ended
	if json.Unmarshal([]byte(content), &e) != nil || !nostr.IsHex64(e.Announcement) || e.Since.IsZero() || e.Counted < 0 {
		return nil
	}
	return &e
}

// ForgetEnded removes the note: the repository is hosted again. One that is not there is no error.
func (r *Repo) ForgetEnded() error {
	err := removeFile(r.in(endedFile))
	if err == nil {
		err = syncPath(r.path)
	}
	if err != nil {
		return fmt.Errorf("forget that the hosting had ended: %w", err)
	}
	return nil
}
