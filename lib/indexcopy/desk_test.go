package indexcopy

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/proto"
)

// someDesk returns copies of an index with one event, and has no bus.
func someDesk(t testing.TB, rate int64) *desk {
	t.Helper()
	db, err := eventdb.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if err := db.Apply([]eventdb.Record{{Seq: 1, Event: note(1)}}); err != nil {
		t.Fatal(err)
	}
	return newDesk(Giver{Index: db, As: proto.UserGateway, Name: "me", Rate: rate, Log: quiet})
}

// large makes a file of a copy so many bytes large.
func large(t testing.TB, d *desk, n int) (place int) {
	t.Helper()
	for i, f := range d.out.Files {
		if filepath.Ext(f.Name) == ".sst" {
			d.out.Files[i].Bytes = int64(n)
			if err := os.Truncate(filepath.Join(d.out.dir, f.Name), int64(n)); err != nil {
				t.Fatal(err)
			}
			return i
		}
	}
	t.Fatal("there is no table")
	return 0
}

// TestRate: however fast a taker asks, no more bytes a second are read than the setting says.
func TestRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rate, chunks = 4 << 20, 100
		d := someDesk(t, rate)
		c, err := d.begin(t.Context(), proto.IndexAsk{})
		if err != nil {
			t.Fatal(err)
		}
		place := large(t, d, chunks*proto.IndexChunk)
		begun := time.Now()
		for n := range chunks {
			if _, err := d.read(t.Context(), proto.IndexRead{Copy: c.Copy, File: place, Chunk: n}); err != nil {
				t.Fatal(err)
			}
		}
		want := time.Duration(float64(chunks*proto.IndexChunk-burst) / rate * float64(time.Second))
		if took := time.Since(begun); took < want || took > want+time.Millisecond {
			t.Errorf("%v, want %v", took, want)
		}
		d.close()
		if err := d.Index.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestOneAtATime: a second taker is told to wait, until the first has ended, has gone away, or was
// too slow.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, d *desk, c proto.IndexCopy){
		"it has ended": func(t *testing.T, d *desk, c proto.IndexCopy) {
			if err := d.end(proto.IndexRead{Copy: c.Copy}); err != nil {
				t.Error(err)
			}
		},
		"it has gone away": func(t *testing.T, d *desk, c proto.IndexCopy) {
			d.look(d.out.asked.Add(idle))
			if !d.busy() {
				t.Error("it is given up too early")
			}
			d.look(time.Now().Add(idle + time.Second))
		},
		"it is too slow": func(t *testing.T, d *desk, c proto.IndexCopy) {
			for after := time.Duration(0); after < within(d.out.total); after += idle / 2 {
				d.out.asked = time.Now().Add(after)
				d.look(d.out.asked)
				if !d.busy() {
					t.Fatal("it is given up too early")
				}
			}
			d.out.asked = time.Now().Add(within(d.out.total) + time.Second)
			d.look(d.out.asked)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := someDesk(t, 1<<30)
			first, err := d.begin(t.Context(), proto.IndexAsk{For: "first"})
			if err != nil {
				t.Fatal(err)
			}
			dir := d.out.dir
			if _, err := d.begin(t.Context(), proto.IndexAsk{For: "second"}); !errors.Is(err, errBusy) {
				t.Errorf("the second: %v", err)
			}
			if o, err := d.offer(); err != nil || !o.Busy || o.Seq != 1 {
				t.Errorf("%+v, %v", o, err)
			}
			if err := d.end(proto.IndexRead{Copy: "another"}); !errors.Is(err, errGone) {
				t.Errorf("another's end: %v", err)
			}
			end(t, d, first)
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the checkpoint is there: %v", err)
			}
			if _, err := d.read(t.Context(), proto.IndexRead{Copy: first.Copy}); !errors.Is(err, errGone) {
				t.Errorf("the first reads on: %v", err)
			}
			if o, err := d.offer(); err != nil || o.Busy {
				t.Errorf("%+v, %v", o, err)
			}
			if _, err := d.begin(t.Context(), proto.IndexAsk{For: "second"}); err != nil {
				t.Errorf("the second, again: %v", err)
			}
			dir = d.out.dir
			d.close()
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a checkpoint outlives the process: %v", err)
			}
			if _, err := d.begin(t.Context(), proto.IndexAsk{}); !errors.Is(err, errBusy) {
				t.Errorf("begun while it stops: %v", err)
			}
		})
	}
}

func TestCheckCopy(t *testing.T) {
	t.Parallel()
	d := someDesk(t, 1<<30)
	good, err := d.begin(t.Context(), proto.IndexAsk{})
	if err != nil {
		t.Fatal(err)
	}
	if total, err := checkCopy(good, 1<<20); err != nil || total != d.out.total {
		t.Fatalf("%d, %v; want %d", total, err, d.out.total)
	}
	for name, change := range map[string]func(c *proto.IndexCopy){
		"a path":                  func(c *proto.IndexCopy) { c.Files[0].Name = "../" + c.Files[0].Name },
		"a name twice":            func(c *proto.IndexCopy) { c.Files[0].Name = c.Files[1].Name },
		"a lock":                  func(c *proto.IndexCopy) { c.Files[0].Name = "LOCK" },
		"a mark of damage":        func(c *proto.IndexCopy) { c.Files[0].Name = "DAMAGED" },
		"too much":                func(c *proto.IndexCopy) { c.Files[0].Bytes = 1<<20 + 1 },
		"too much in all":         func(c *proto.IndexCopy) { c.Files[0].Bytes, c.Files[1].Bytes = 1<<20, 1<<20 },
		"less than nothing":       func(c *proto.IndexCopy) { c.Files[0].Bytes = -1 },
		"no files":                func(c *proto.IndexCopy) { c.Files = nil },
		"two manifests":           func(c *proto.IndexCopy) { c.Files = append(c.Files, proto.IndexFile{Name: "MANIFEST-000099"}) },
		"no name":                 func(c *proto.IndexCopy) { c.Copy = "" },
		"a name that is too long": func(c *proto.IndexCopy) { c.Copy = strings.Repeat("x", nameBytes+1) },
	} {
		c := good
		c.Files = slices.Clone(good.Files)
		change(&c)
		if _, err := checkCopy(c, 1<<20); !errors.Is(err, errBad) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzRead: whatever is asked for, only chunks of the copy are given.
func FuzzRead(f *testing.F) {
	d := someDesk(f, 1<<40)
	c, err := d.begin(f.Context(), proto.IndexAsk{})
	if err != nil {
		f.Fatal(err)
	}
	for _, r := range []proto.IndexRead{{Copy: c.Copy}, {Copy: c.Copy, File: 1 << 40}, {Copy: c.Copy, File: -1, Chunk: 1}, {Copy: c.Copy, Chunk: 1 << 60}, {}} {
		data, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add(bytes.Repeat([]byte("["), maxRequest+1))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r proto.IndexRead
		if err := parse(data, &r); err != nil {
			if !errors.Is(err, errBad) {
				t.Fatal(err)
			}
			return
		}
		message, err := d.read(t.Context(), r)
		switch {
		case err == nil && r.Copy == c.Copy && r.File >= 0 && r.File < len(c.Files):
			_, length, ok := chunkAt(c.Files[r.File].Bytes, r.Chunk)
			if _, err := opened(message, length); !ok || err != nil {
				t.Fatalf("%+v: %v", r, err)
			}
		case errors.Is(err, errGone) && r.Copy != c.Copy, errors.Is(err, errBad) && r.Copy == c.Copy:
		default:
			t.Fatalf("%+v: %v", r, err)
		}
	})
}

// FuzzCopy: whatever a giver lists, what is accepted are files of an index, each once, within the
// bound.
func FuzzCopy(f *testing.F) {
	d := someDesk(f, 1<<40)
	c, err := d.begin(f.Context(), proto.IndexAsk{})
	if err != nil {
		f.Fatal(err)
	}
	data, err := json.Marshal(c)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(bytes.Replace(data, []byte(`.sst`), []byte(`/../x.sst`), 1))
	f.Add([]byte(`{"copy":"x","files":[{"name":"000001.sst","bytes":9223372036854775807},{"name":"000002.sst","bytes":9223372036854775807}]}`))
	const most = 1 << 30
	f.Fuzz(func(t *testing.T, data []byte) {
		var c proto.IndexCopy
		if json.Unmarshal(data, &c) != nil {
			return
		}
		total, err := checkCopy(c, most)
		if err != nil {
			if !errors.Is(err, errBad) {
				t.Fatal(err)
			}
			return
		}
		names, sum := map[string]bool{}, int64(0)
		for _, file := range c.Files {
			if filepath.Base(file.Name) != file.Name || file.Name[0] == '.' || names[file.Name] || file.Bytes < 0 {
				t.Fatalf("%+v", file)
			}
			names[file.Name] = true
			sum += file.Bytes
			// Its chunks are the file, each byte once.
			if n := chunks(file.Bytes); n > 0 {
				offset, length, ok := chunkAt(file.Bytes, n-1)
				if _, _, more := chunkAt(file.Bytes, n); !ok || more || offset+int64(length) != file.Bytes {
					t.Fatalf("%+v: %d chunks", file, n)
				}
			} else if file.Bytes != 0 {
				t.Fatalf("%+v: no chunks", file)
			}
		}
		if total != sum || total > most {
			t.Fatalf("%d bytes, want %d", total, sum)
		}
	})
}

// FuzzChunk: a message that is taken for a chunk is one that was sealed.
func FuzzChunk(f *testing.F) {
	f.Add(sealed([]byte("0000chunk")), 5)
	f.Add([]byte("x"), 0)
	f.Add([]byte{}, -4)
	f.Fuzz(func(t *testing.T, message []byte, length int) {
		chunk, err := opened(message, length)
		if err != nil {
			return
		}
		if len(chunk) != length || !bytes.Equal(sealed(append(make([]byte, sumBytes), chunk...)), message) {
			t.Fatalf("%x, of %d", message, length)
		}
	})
}
