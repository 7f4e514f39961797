// SPDX-License-Identifier: MIT

//! The example of `Documentation/gpu/skua/assembler.rst` assembles and does what the page says.

use skua_reference::{run, Buffers};

#[test]
fn the_worked_example_sums() {
    let page = include_str!("../../../Documentation/gpu/skua/assembler.rst");
    let (_, rest) = page
        .split_once("one atomic operation. ::\n")
        .expect("the example is there");
    let (source, _) = rest.split_once("\nA dispatch needs").expect("it ends");
    let program = skua_asm::assemble(source).unwrap_or_else(|e| panic!("{}", e[0]));
    for count in [1u32, 63, 64, 65, 1000] {
        let (data, total) = (0x1_0000_0000, 0x2_0000_0000);
        let mut memory = Buffers::default();
        memory.add(data, (1..=count).flat_map(u32::to_le_bytes).collect());
        memory.add(total, vec![0; 4]);
        let dispatch = program
            .dispatch(0, [count.div_ceil(64), 1, 1], |name| match name {
                "data" => Some(data),
                "total" => Some(total),
                "count" => Some(count.into()),
                _ => None,
            })
            .expect("all arguments");
        run(&program.bytes(), &dispatch, &mut memory, 1 << 20).expect("it ends");
        let sum = memory.get(total).expect("it was added");
        assert_eq!(sum, (count * (count + 1) / 2).to_le_bytes(), "{count}");
    }
}
