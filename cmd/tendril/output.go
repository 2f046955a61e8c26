package main

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
)

// output is where events are written to: standard output, or a file that appears when it is whole.
type output struct {
	name   string
	w      *bufio.Writer
	file   *os.File
	rename string // what the file is called in the end; empty: it is so already
}

func openOutput(name string) (*output, error) {
	if name == "-" {
		return &output{name: "standard output", w: bufio.NewWriterSize(os.Stdout, 1<<20)}, nil
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		file, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return nil, err
		}
		return &output{name: name, w: bufio.NewWriterSize(file, 1<<20), file: file}, nil
	}
	file, err := os.CreateTemp(filepath.Dir(name), ".tendril-export-")
	if err != nil {
		return nil, err
	}
	return &output{name: name, w: bufio.NewWriterSize(file, 1<<20), file: file, rename: name}, nil
}

// finish brings everything to the disk and gives the file its name.
func (o *output) finish() error {
	err := o.w.Flush()
	if o.file == nil || err != nil {
		return err
	}
	if o.rename != "" {
		err = errors.Join(o.file.Chmod(0o644), o.file.Sync())
	}
	if err = errors.Join(err, o.file.Close()); err == nil && o.rename != "" {
		err = os.Rename(o.file.Name(), o.rename)
	}
	if err == nil {
		o.file, o.rename = nil, ""
	}
	return err
}

// discard removes what was not finished.
func (o *output) discard() {
	if o.file == nil {
		return
	}
	o.file.Close()
	if o.rename != "" {
		os.Remove(o.file.Name())
	}
}
