//! A balanced search tree whose nodes lie in records that the caller owns.
//!
//! Picture a mobile: every rod carries two others, and no rod hangs more than one level lower on
//! one side than on the other (Adelson-Velsky and Landis). The tree itself is one number, the
//! index of its root. Whatever a node needs lies in the caller's record, as [`Links`]; so putting
//! a request into a tree allocates nothing, and a record can lie in several arenas' trees at once.
//!
//! How to use it: embed one [`Links`] per tree that a record can be in at the same time, implement
//! [`Nodes`] for whatever holds the records, and keep a [`Tree`] per sorted set:
//!
//! * [`Nodes::before`] is the order, wrap-safe or not, as the caller likes. Equal nodes lie in the
//!   order of their insertion. What it compares must not change while a node is in the tree.
//! * For a value about whole subtrees (say, the smallest start below a node) set
//!   [`Nodes::AUGMENTED`] and compute it in [`Nodes::refresh`] from the node and its two children,
//!   reached through [`Links::left`] and [`Links::right`]. The tree calls `refresh` bottom-up
//!   wherever its shape changes; when a value changes in place call [`Tree::refresh_up`].
//! * Own searches start at [`Tree::root`] and walk down the links, for example the eligible lookup.
//!
//! All operations take O(log n) steps in the worst case and none of them recurses or allocates.
//!
//! Source: G. M. Adelson-Velsky and E. M. Landis, "An algorithm for the organization of
//! information", 1962.

/// The index that names no node.
pub(crate) const NIL: u32 = u32::MAX;

const LEFT: usize = 0;
const RIGHT: usize = 1;

/// The node is in no tree.
const OUTSIDE: u8 = 0;
/// Both subtrees are equally high.
const EVEN: u8 = 2;

/// Returns how a node leans whose subtree on `side` is one level higher than the other.
#[inline]
const fn towards(side: usize) -> u8 {
    if side == LEFT { 1 } else { 3 }
}

/// What a tree keeps in each of its nodes; 16 bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Links {
    parent: u32,
    /// The subtrees before and behind this node; an array, so that a search picks one without a
    /// branch that the processor would have to guess.
    children: [u32; 2],
    /// [`OUTSIDE`], or which subtree is the higher one. Not heights: to keep those true, every
    /// change would have to look at the siblings of the way, which lie in other cache lines.
    lean: u8,
}

impl Default for Links {
    fn default() -> Self {
        Self::DETACHED
    }
}

impl Links {
    /// The links of a node that is in no tree.
    pub(crate) const DETACHED: Self = Self { parent: NIL, children: [NIL; 2], lean: OUTSIDE };

    /// Returns whether the node is in a tree.
    #[inline]
    pub(crate) const fn is_linked(&self) -> bool {
        self.lean != OUTSIDE
    }

    /// Returns the child that comes earlier in the order.
    #[inline]
    pub(crate) const fn left(&self) -> Option<u32> {
        some(self.children[LEFT])
    }

    /// Returns the child that comes later in the order.
    #[inline]
    pub(crate) const fn right(&self) -> Option<u32> {
        some(self.children[RIGHT])
    }
}

/// Turns an index that may be [`NIL`] into an option.
#[inline]
pub(crate) const fn some(index: u32) -> Option<u32> {
    if index == NIL { None } else { Some(index) }
}

/// Turns an option into an index that may be [`NIL`].
#[inline]
const fn index_or_nil(node: Option<u32>) -> u32 {
    match node {
        Some(index) => index,
        None => NIL,
    }
}

/// The records in which the nodes of a tree lie.
pub(crate) trait Nodes {
    /// Whether [`refresh`](Self::refresh) keeps a value about subtrees.
    const AUGMENTED: bool = false;

    /// Returns the links of node `index`.
    fn links(&self, index: u32) -> &Links;

    /// Returns the links of node `index` for writing.
    fn links_mut(&mut self, index: u32) -> &mut Links;

    /// Returns whether node `a` lies strictly before node `b`.
    fn before(&self, a: u32, b: u32) -> bool;

    /// Computes the value about the subtree of `index` anew, and returns whether it is another
    /// one now; its children are up to date.
    fn refresh(&mut self, index: u32) -> bool {
        let _ = index;
        false
    }
}

/// A place between two neighbours in the order, either of which may be [`NIL`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Gap {
    below: u32,
    above: u32,
}

impl Gap {
    /// Returns the gap between two neighbours.
    #[inline]
    pub(crate) const fn between(below: Option<u32>, above: Option<u32>) -> Self {
        Self { below: index_or_nil(below), above: index_or_nil(above) }
    }

    /// Returns the last node before the gap.
    #[inline]
    pub(crate) const fn below(self) -> Option<u32> {
        some(self.below)
    }

    /// Returns the first node behind the gap.
    #[inline]
    pub(crate) const fn above(self) -> Option<u32> {
        some(self.above)
    }
}

/// A sorted set of nodes; see the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    root: u32,
}

impl Default for Tree {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Tree {
    /// The tree without nodes.
    pub(crate) const EMPTY: Self = Self { root: NIL };

    /// Returns whether there is no node.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.root == NIL
    }

    /// Returns the node at the top.
    #[inline]
    pub(crate) const fn root(&self) -> Option<u32> {
        some(self.root)
    }

    /// Adds node `index`, behind all nodes that equal it.
    ///
    /// # Panics
    ///
    /// Panics if the node is in a tree already.
    #[inline]
    pub(crate) fn insert<N: Nodes + ?Sized>(&mut self, nodes: &mut N, index: u32) {
        if self.root != NIL {
            return self.insert_among(nodes, index);
        }
        // Of the trees of all groups most have no node, or one.
        assert!(!nodes.links(index).is_linked(), "a node enters a tree once");
        *nodes.links_mut(index) = Links { parent: NIL, children: [NIL; 2], lean: EVEN };
        if N::AUGMENTED {
            nodes.refresh(index);
        }
        self.root = index;
    }

    fn insert_among<N: Nodes + ?Sized>(&mut self, nodes: &mut N, index: u32) {
        let gap = self.gap(nodes, |other| !nodes.before(index, other));
        self.insert_at(nodes, gap, index);
    }

    /// Adds node `index` where [`gap`](Self::gap) found that it belongs; nothing was added or
    /// removed since.
    ///
    /// # Panics
    ///
    /// Panics if the node is in a tree already.
    #[inline]
    pub(crate) fn insert_at<N: Nodes + ?Sized>(&mut self, nodes: &mut N, gap: Gap, index: u32) {
        assert!(!nodes.links(index).is_linked(), "a node enters a tree once");
        // Of two neighbours one lies below the other and has no child on the side of the gap.
        let hangs_below = gap.below != NIL && nodes.links(gap.below).children[RIGHT] == NIL;
        let (parent, side) = if hangs_below { (gap.below, RIGHT) } else { (gap.above, LEFT) };
        *nodes.links_mut(index) = Links { parent, children: [NIL; 2], lean: EVEN };
        if N::AUGMENTED {
            nodes.refresh(index);
        }
        if parent == NIL {
            self.root = index;
        } else {
            nodes.links_mut(parent).children[side] = index;
            self.mend_grown(nodes, parent, side);
        }
    }

    /// Takes node `index` out.
    ///
    /// # Panics
    ///
    /// Panics if the node is in no tree. It must be in this one.
    #[inline]
    pub(crate) fn remove<N: Nodes + ?Sized>(&mut self, nodes: &mut N, index: u32) {
        let gone = *nodes.links(index);
        assert!(gone.is_linked(), "a node leaves the tree that it is in");
        if self.root == index && gone.children == [NIL; 2] {
            self.root = NIL;
            *nodes.links_mut(index) = Links::DETACHED;
        } else {
            self.remove_from_among(nodes, index, gone);
        }
    }

    fn remove_from_among<N: Nodes + ?Sized>(&mut self, nodes: &mut N, index: u32, gone: Links) {
        let [left, right] = gone.children;
        // Where the tree became lower: below this node, on this side.
        let (lowest, side);
        let mut heir = NIL;
        if left == NIL || right == NIL {
            let child = if left == NIL { right } else { left };
            side = self.replace_child(nodes, gone.parent, index, child);
            lowest = gone.parent;
        } else {
            // The successor has no left child; it takes the place of the node that goes.
            heir = outermost(nodes, right, LEFT);
            let old = *nodes.links(heir);
            if old.parent == index {
                (lowest, side) = (heir, RIGHT);
            } else {
                (lowest, side) = (old.parent, LEFT);
                self.replace_child(nodes, old.parent, heir, old.children[RIGHT]);
                nodes.links_mut(right).parent = heir;
                nodes.links_mut(heir).children[RIGHT] = right;
            }
            nodes.links_mut(left).parent = heir;
            let links = nodes.links_mut(heir);
            links.children[LEFT] = left;
            links.lean = gone.lean;
            self.replace_child(nodes, gone.parent, index, heir);
        }
        *nodes.links_mut(index) = Links::DETACHED;
        self.mend_shrunk(nodes, lowest, side, heir);
    }

    /// Returns the first node in the order.
    #[inline]
    pub(crate) fn first<N: Nodes + ?Sized>(&self, nodes: &N) -> Option<u32> {
        self.root().map(|root| outermost(nodes, root, LEFT))
    }

    /// Returns the last node in the order.
    pub(crate) fn last<N: Nodes + ?Sized>(&self, nodes: &N) -> Option<u32> {
        self.root().map(|root| outermost(nodes, root, RIGHT))
    }

    /// Returns the first node that is not `below`, where `below` holds for a head of the order
    /// (possibly empty) and for nothing behind it.
    pub(crate) fn lower_bound<N: Nodes + ?Sized>(
        &self,
        nodes: &N,
        below: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        some(self.gap(nodes, below).above)
    }

    /// Returns between which nodes the order passes from `below` to not `below`; see
    /// [`lower_bound`](Self::lower_bound).
    #[inline]
    pub(crate) fn gap<N: Nodes + ?Sized>(&self, nodes: &N, below: impl Fn(u32) -> bool) -> Gap {
        let mut sides = [NIL; 2];
        let mut at = self.root;
        while at != NIL {
            let is_below = below(at);
            sides[usize::from(!is_below)] = at;
            at = nodes.links(at).children[usize::from(is_below)];
        }
        let [below, above] = sides;
        Gap { below, above }
    }

    /// Computes the values about subtrees anew from `index` upwards as far as they change, after the
    /// value of `index` itself changed in place.
    pub(crate) fn refresh_up<N: Nodes + ?Sized>(&self, nodes: &mut N, index: u32) {
        let mut at = index;
        while at != NIL && nodes.refresh(at) {
            at = nodes.links(at).parent;
        }
    }

    /// Walks the whole tree and returns the number of its nodes.
    ///
    /// # Panics
    ///
    /// Panics if links, balance or order are broken.
    pub(crate) fn check<N: Nodes + ?Sized>(&self, nodes: &N) -> u32 {
        let Some(root) = self.root() else { return 0 };
        assert_eq!(nodes.links(root).parent, NIL, "the root has no parent");
        checked_height(nodes, root);
        let mut count = 1;
        let mut at = self.first(nodes);
        while let Some(index) = at {
            at = successor(nodes, index);
            count += u32::from(at.is_some());
            assert!(at.is_none_or(|next| !nodes.before(next, index)), "nodes are in order");
        }
        count
    }

    /// Restores balance and values about subtrees after the subtree of `at` on `side` grew by
    /// one level.
    #[inline]
    fn mend_grown<N: Nodes + ?Sized>(&mut self, nodes: &mut N, mut at: u32, mut side: usize) {
        loop {
            let links = nodes.links_mut(at);
            let parent = links.parent;
            if links.lean == towards(side) {
                self.lift(nodes, at, side);
                at = parent;
                break;
            }
            if links.lean != EVEN {
                links.lean = EVEN;
                break;
            }
            links.lean = towards(side);
            if N::AUGMENTED {
                nodes.refresh(at);
            }
            if parent == NIL {
                return;
            }
            side = side_of(nodes, parent, at);
            at = parent;
        }
        if N::AUGMENTED {
            self.refresh_up(nodes, at);
        }
    }

    /// Restores balance and values about subtrees after the subtree of `at` (possibly [`NIL`]) on
    /// `side` shrank by one level. What `heir` (possibly [`NIL`]) knows of its subtree was true at
    /// another place.
    #[inline]
    fn mend_shrunk<N: Nodes + ?Sized>(
        &mut self,
        nodes: &mut N,
        mut at: u32,
        mut side: usize,
        mut heir: u32,
    ) {
        while at != NIL {
            let links = nodes.links_mut(at);
            let parent = links.parent;
            let mut top = at;
            if links.lean == EVEN {
                links.lean = towards(1 - side);
                break;
            } else if links.lean == towards(side) {
                links.lean = EVEN;
                if N::AUGMENTED {
                    nodes.refresh(at);
                }
            } else {
                top = self.lift(nodes, at, 1 - side);
                if nodes.links(top).lean != EVEN {
                    heir = if at == heir { NIL } else { heir };
                    at = parent;
                    break;
                }
            }
            if parent != NIL {
                side = side_of(nodes, parent, top);
            }
            heir = if at == heir { NIL } else { heir };
            at = parent;
        }
        if N::AUGMENTED {
            // Up to the heir and its parent, whatever changes.
            while heir != NIL {
                nodes.refresh(at);
                heir = if at == heir { NIL } else { heir };
                at = nodes.links(at).parent;
            }
            self.refresh_up(nodes, at);
        }
    }

    /// Balances a node whose subtree on `side` is two levels higher than the other, and returns
    /// the node that is above it now. That one leans iff the whole is as high as before.
    fn lift<N: Nodes + ?Sized>(&mut self, nodes: &mut N, at: u32, side: usize) -> u32 {
        let child = nodes.links(at).children[side];
        let lean = nodes.links(child).lean;
        if lean != towards(1 - side) {
            self.rotate(nodes, at, side);
            let stays_high = lean == EVEN;
            nodes.links_mut(at).lean = if stays_high { towards(side) } else { EVEN };
            nodes.links_mut(child).lean = if stays_high { towards(1 - side) } else { EVEN };
            return child;
        }
        let inner = nodes.links(child).children[1 - side];
        let lean = nodes.links(inner).lean;
        self.rotate(nodes, child, 1 - side);
        self.rotate(nodes, at, side);
        let leans = |way| lean == towards(way);
        nodes.links_mut(at).lean = if leans(side) { towards(1 - side) } else { EVEN };
        nodes.links_mut(child).lean = if leans(1 - side) { towards(side) } else { EVEN };
        nodes.links_mut(inner).lean = EVEN;
        inner
    }

    /// Lifts the child of `at` on `side` above it.
    fn rotate<N: Nodes + ?Sized>(&mut self, nodes: &mut N, at: u32, side: usize) {
        let Links { parent, children, .. } = *nodes.links(at);
        let top = children[side];
        let middle = nodes.links(top).children[1 - side];
        nodes.links_mut(at).children[side] = middle;
        if middle != NIL {
            nodes.links_mut(middle).parent = at;
        }
        self.replace_child(nodes, parent, at, top);
        nodes.links_mut(top).children[1 - side] = at;
        nodes.links_mut(at).parent = top;
        if N::AUGMENTED {
            nodes.refresh(at);
            nodes.refresh(top);
        }
    }

    /// Hangs `new` (possibly [`NIL`]) where `old` hung below `parent`, and returns on which side.
    #[inline]
    fn replace_child<N: Nodes + ?Sized>(
        &mut self,
        nodes: &mut N,
        parent: u32,
        old: u32,
        new: u32,
    ) -> usize {
        let mut side = LEFT;
        if parent == NIL {
            self.root = new;
        } else {
            side = side_of(nodes, parent, old);
            nodes.links_mut(parent).children[side] = new;
        }
        if new != NIL {
            nodes.links_mut(new).parent = parent;
        }
        side
    }
}

/// Returns on which side of its parent a node hangs.
#[inline]
fn side_of<N: Nodes + ?Sized>(nodes: &N, parent: u32, index: u32) -> usize {
    usize::from(nodes.links(parent).children[RIGHT] == index)
}

/// Returns the height of a subtree. Recurses as deep as that.
fn checked_height<N: Nodes + ?Sized>(nodes: &N, index: u32) -> u32 {
    let links = nodes.links(index);
    let [left, right] = links.children.map(|child| {
        assert!(child == NIL || nodes.links(child).parent == index, "a child knows its parent");
        if child == NIL { 0 } else { checked_height(nodes, child) }
    });
    let lean = match right.cast_signed() - left.cast_signed() {
        -1 => towards(LEFT),
        0 => EVEN,
        1 => towards(RIGHT),
        _ => unreachable!("no side hangs two levels lower"),
    };
    assert_eq!(links.lean, lean, "a node knows how it leans");
    1 + left.max(right)
}

/// Returns the node that follows `index` in the order.
#[inline]
pub(crate) fn successor<N: Nodes + ?Sized>(nodes: &N, index: u32) -> Option<u32> {
    neighbour(nodes, index, RIGHT)
}

/// Returns the node that precedes `index` in the order.
#[inline]
pub(crate) fn predecessor<N: Nodes + ?Sized>(nodes: &N, index: u32) -> Option<u32> {
    neighbour(nodes, index, LEFT)
}

#[inline]
fn neighbour<N: Nodes + ?Sized>(nodes: &N, index: u32, side: usize) -> Option<u32> {
    let links = nodes.links(index);
    if links.children[side] != NIL {
        return Some(outermost(nodes, links.children[side], 1 - side));
    }
    let (mut below, mut at) = (index, links.parent);
    while at != NIL && nodes.links(at).children[side] == below {
        (below, at) = (at, nodes.links(at).parent);
    }
    some(at)
}

#[inline]
fn outermost<N: Nodes + ?Sized>(nodes: &N, mut at: u32, side: usize) -> u32 {
    loop {
        let next = nodes.links(at).children[side];
        if next == NIL {
            return at;
        }
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use alloc::vec::Vec;

    #[derive(Clone, Default)]
    struct Node {
        links: Links,
        key: u64,
        value: u64,
        least: u64,
    }

    struct Arena(Vec<Node>);

    impl Nodes for Arena {
        const AUGMENTED: bool = true;

        fn links(&self, index: u32) -> &Links {
            &self.0[index as usize].links
        }

        fn links_mut(&mut self, index: u32) -> &mut Links {
            &mut self.0[index as usize].links
        }

        fn before(&self, a: u32, b: u32) -> bool {
            self.0[a as usize].key < self.0[b as usize].key
        }

        fn refresh(&mut self, index: u32) -> bool {
            let links = self.0[index as usize].links;
            let children = [links.left(), links.right()].into_iter().flatten();
            let least = children.map(|child| self.0[child as usize].least).min();
            let own = self.0[index as usize].value;
            let least = least.map_or(own, |least| least.min(own));
            core::mem::replace(&mut self.0[index as usize].least, least) != least
        }
    }

    fn order(tree: &Tree, arena: &Arena) -> Vec<u32> {
        let mut order = Vec::new();
        let mut at = tree.first(arena);
        while let Some(index) = at {
            order.push(index);
            at = successor(arena, index);
        }
        order
    }

    fn check(tree: &Tree, arena: &Arena, model: &[u32]) {
        assert_eq!(tree.check(arena) as usize, model.len());
        assert_eq!(order(tree, arena), model);
        let least = model.iter().map(|&index| arena.0[index as usize].value).min();
        assert_eq!(tree.root().map(|root| arena.0[root as usize].least), least);
        for pair in model.windows(2) {
            assert_eq!(predecessor(arena, pair[1]), Some(pair[0]));
        }
    }

    #[test]
    fn a_long_random_history_matches_a_sorted_list() {
        let mut random = Random::new(0x7ee5);
        let mut arena = Arena(alloc::vec![Node::default(); 200]);
        let mut tree = Tree::EMPTY;
        let mut model: Vec<u32> = Vec::new();
        for _ in 0..20_000 {
            let index = u32::try_from(random.below(200)).unwrap();
            let key = random.below(60);
            let node = &mut arena.0[index as usize];
            node.value = random.below(1_000_000);
            if node.links.is_linked() && random.below(4) == 0 {
                tree.refresh_up(&mut arena, index);
            } else if node.links.is_linked() {
                tree.remove(&mut arena, index);
                model.retain(|&other| other != index);
            } else {
                node.key = key;
                let place = model.partition_point(|&other| arena.0[other as usize].key <= key);
                tree.insert(&mut arena, index);
                model.insert(place, index);
            }
            check(&tree, &arena, &model);
            let bound = tree.lower_bound(&arena, |other| arena.0[other as usize].key < key);
            let expected = model.iter().find(|&&other| arena.0[other as usize].key >= key);
            assert_eq!(bound, expected.copied());
        }
    }

    #[test]
    fn a_million_ascending_keys_stay_shallow() {
        let mut arena = Arena((0..1_000_000).map(|key| Node { key, ..Node::default() }).collect());
        let mut tree = Tree::EMPTY;
        for index in 0..1_000_000 {
            tree.insert(&mut arena, index);
        }
        // 1.44 * log2(10^6) is 28.7: the bound of balanced trees.
        assert!(checked_height(&arena, tree.root().unwrap()) <= 28);
    }
}
