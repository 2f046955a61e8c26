package eventdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
)

// Compare counts the entries in which the index differs from another, which was made of the same
// log under the same rules and has applied the same sequence. The error is one of reading: files
// may be damaged.
func (db *DB) Compare(ctx context.Context, other *DB) (differing int, err error) {
	for _, db := range []*DB{db, other} {
		for more := true; more; {
			if more, err = db.takePiece(); err != nil {
				return 0, fmt.Errorf("compare indexes: %w", err)
			}
		}
	}
	ours, err := db.pebble.NewIterWithContext(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("compare indexes: %w", err)
	}
	defer func() { err = errors.Join(err, ours.Close()) }()
	theirs, err := other.pebble.NewIterWithContext(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("compare indexes: %w", err)
	}
	defer func() { err = errors.Join(err, theirs.Close()) }()
	for a, b := ours.First(), theirs.First(); (a || b) && ctx.Err() == nil; {
		order := 0 // of our entry and theirs
		switch {
		case a && b:
			order = bytes.Compare(ours.Key(), theirs.Key())
		case a:
			order = -1
		default:
			order = 1
		}
		key := ours.Key()
		if order > 0 {
			key = theirs.Key()
		}
		differs := order != 0 || !bytes.Equal(ours.Value(), theirs.Value())
		if differs && !bytes.Equal(key, metaLast) { // which record was read last says nothing of what the index holds
			differing++
		}
		if order <= 0 {
			a = ours.Next()
		}
		if order >= 0 {
			b = theirs.Next()
		}
	}
	return differing, errors.Join(ctx.Err(), ours.Error(), theirs.Error())
}
