package eventdb

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Difference is an entry in which two indexes differ.
type Difference struct {
	Table string // in words: "events", "by author"
	// Key is the entry's key in its table, hex.
	Key string
	// Missing: only the other index has the entry. Extra: only this one has it. Neither: both have
	// it and it says something else.
	Missing, Extra bool
}

// tables are those that follow from the log, in words.
var tables = map[byte]string{
	tableEvent: "events", tableID: "by id", tableTime: "by time", tableAuthor: "by author", tableKind: "by kind", tableTag: "by tag",
	tableHolder: "holders of coordinates", tableDeletedID: "deletions by id", tableDeletedTo: "deletions by coordinate", tableExpiry: "expirations",
}

// errEnough ends a comparison.
var errEnough = errors.New("enough")

// Compare looks for entries in which the index differs from another, which was made of the same log
// and under the same rules and stands at the same sequence. differs is told of each, in order of
// the tables and keys, until it returns false. What has expired is passed over: indexes sweep it
// out when they come to it. The error is one of reading: files may be damaged.
func (db *DB) Compare(ctx context.Context, other *DB, differs func(Difference) bool) error {
	c := comparison{db: db, other: other, differs: differs}
	for table := range 256 {
		if _, is := tables[byte(table)]; !is {
			continue
		}
		if err := c.table(ctx, byte(table)); errors.Is(err, errEnough) {
			return nil
		} else if err != nil {
			return fmt.Errorf("compare indexes: %w", err)
		}
	}
	return nil
}

// ErrInUse: a process has the folder of an index open.
var ErrInUse = errors.New("the index is in use")

// Lock keeps every other process from opening the index in a folder, until unlock is called. The
// folder is made if it is not there. [ErrInUse]: one has it open.
func Lock(dir string) (unlock func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock index: %w", err)
	}
	lock, err := pebble.LockDirectory(dir, vfs.Default)
	if errors.Is(err, syscall.EAGAIN) || err != nil && strings.Contains(err.Error(), "lock held by current process") {
		return nil, ErrInUse
	}
	if err != nil {
		return nil, fmt.Errorf("lock index: %w", err)
	}
	return lock.Close, nil
}

type comparison struct {
	db, other *DB
	differs   func(Difference) bool
}

// table walks one table of both indexes.
func (c *comparison) table(ctx context.Context, table byte) (err error) {
	bounds := &pebble.IterOptions{LowerBound: []byte{table}, UpperBound: []byte{table + 1}}
	ours, err := c.db.pebble.NewIterWithContext(ctx, bounds)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.Close()) }()
	theirs, err := c.other.pebble.NewIterWithContext(ctx, bounds)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, theirs.Close()) }()
	for a, b := ours.First(), theirs.First(); a || b; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := errors.Join(ours.Error(), theirs.Error()); err != nil {
			return err
		}
		order := 0
		switch {
		case !b:
			order = -1
		case !a:
			order = 1
		default:
			order = bytes.Compare(ours.Key(), theirs.Key())
		}
		if err := c.look(table, order, ours, theirs); err != nil {
			return err
		}
		if order <= 0 {
			a = ours.Next()
		}
		if order >= 0 {
			b = theirs.Next()
		}
	}
	return errors.Join(ours.Error(), theirs.Error())
}

// look compares the entries at which both stand; order says whose is the smaller one, which the
// other lacks.
func (c *comparison) look(table byte, order int, ours, theirs *pebble.Iterator) error {
	at := ours
	if order > 0 {
		at = theirs
	}
	value, err := at.ValueAndErr()
	if err != nil {
		return err
	}
	if order == 0 {
		other, err := theirs.ValueAndErr()
		if err != nil || bytes.Equal(value, other) || table == tableHolder && sameHolder(value, other) {
			return err
		}
	}
	if c.isOver(table, at.Key(), value) {
		return nil
	}
	if !c.differs(Difference{Table: tables[table], Key: fmt.Sprintf("%x", at.Key()[1:]), Missing: order > 0, Extra: order < 0}) {
		return errEnough
	}
	return nil
}

// sameHolder reports whether two holders are the same event, of which one index has swept out what
// the other still has.
func sameHolder(a, b []byte) bool {
	if len(a) != placeLen+8 || len(b) != placeLen+8 || !bytes.Equal(a[:placeLen], b[:placeLen]) {
		return false
	}
	return binary.BigEndian.Uint64(a[placeLen:]) == swept || binary.BigEndian.Uint64(b[placeLen:]) == swept
}

// isOver reports whether an entry is of an event that has expired. What cannot be read is none.
func (c *comparison) isOver(table byte, key, value []byte) bool {
	now := c.db.now()
	switch table {
	case tableEvent:
		raw, err := unpack(nil, value)
		if err != nil {
			return false
		}
		ev, err := decode(raw)
		if err != nil {
			return false
		}
		at := Expiration(ev)
		return at != 0 && at < now
	case tableID, tableTime, tableAuthor, tableKind, tableTag:
		p, err := parsePosting(value)
		return err == nil && p.expiry != 0 && p.expiry < now
	case tableExpiry:
		return len(key) > timeLen && binary.BigEndian.Uint64(key[1:]) < uint64(now)
	}
	return false
}
